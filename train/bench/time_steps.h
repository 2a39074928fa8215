// Training steps against the clock.
#pragma once

#include <vector>

#include "train/bench/timed_backend.h"
#include "train/train_state.h"

namespace tessera {

// Initialises a run in `arena` and makes `warmup` steps, then `steps` that are timed, on random tokens: the
// arithmetic does not depend on them. `times`, if given, ends up without those of the warm-up. Returns the
// seconds of each step, in ascending order.
std::vector<double> time_steps(Backend& be, Arena& arena, const RunShape& shape,
                               const OptimizerConfig& optimizer, int64_t warmup, int64_t steps,
                               OpTimes* times = nullptr);

}  // namespace tessera
