// The memory of weights of losses, which a run has where its data has some: 4 bytes a token, and their twin
// on the host. Choices of auto do not depend on so little, and are made before the data is open.
#pragma once

#include "train/memory/run_plan.h"

namespace tessera {

// `plan`, with room for them if `weights`
RunPlan with_weights(RunPlan plan, bool weights);

}  // namespace tessera
