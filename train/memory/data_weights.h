// The memory of weights of losses, which a run has if its data has weights: 4 bytes a token on the device,
// and as many on the host. `auto` chooses before the data is open, and so without them: they are too small to
// matter.
#pragma once

#include "train/memory/run_plan.h"

namespace tessera {

// `plan`, with this memory added if `weights`
RunPlan with_weights(RunPlan plan, bool weights);

}  // namespace tessera
