// Times training steps.
#pragma once

#include <functional>
#include <vector>

#include "train/session/train_state.h"

namespace tessera {

struct TimedSteps {
  int64_t warmup = 1, steps = 1;                       // those of the warm-up come first and are not timed
  std::function<void(int64_t step)> before_step = {};  // 0 is the first that is timed
  // Of the ranks of the shape, and of those of its context; none: one
  Communicator *comm = nullptr, *context = nullptr;
};
struct StepTimes {
  std::vector<double> seconds;  // of each step, in ascending order
  double waited = 0;            // seconds of a step spent waiting for other ranks

  double median() const { return seconds[seconds.size() / 2]; }
};

// Initialises a run in `arena` and makes steps on random tokens: the arithmetic does not depend on them.
StepTimes time_steps(Backend& be, Arena& arena, const RunShape& shape, const OptimizerConfig& optimizer,
                     const TimedSteps& of);

}  // namespace tessera
