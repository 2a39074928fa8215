// The memory of the losses' weights, which a run has if its data has weights: 4 bytes for each token on the
// device, and as many on the host. The choices for `auto` are made before the data is open, and so without
// this memory: it is too small to matter.
#pragma once

#include "train/memory/run_plan.h"

namespace tessera {

// `plan`, with this memory added if `weights`
RunPlan with_weights(RunPlan plan, bool weights);

}  // namespace tessera
