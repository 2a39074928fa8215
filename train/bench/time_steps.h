// Times training steps.
#pragma once

#include <functional>
#include <vector>

#include "train/session/train_state.h"

namespace tessera {

struct TimedSteps {
  int64_t warmup = 1, steps = 1;                       // those of the warm-up come first and are not timed
  std::function<void(int64_t step)> before_step = {};  // 0 is the first that is timed
  StepAxes axes = {};                                  // of the shape's mesh
};
struct StepTimes {
  std::vector<double> seconds;        // of each step, in ascending order
  std::vector<double> micro_batches;  // of each that is neither the first nor the last of its step; ascending
  std::vector<double> updates;        // of each step, what its micro-batches do not take; ascending
  double waited = 0;                  // seconds of a step spent waiting for other ranks

  // Medians
  double median() const { return seconds[seconds.size() / 2]; }
  double micro_batch() const { return micro_batches[micro_batches.size() / 2]; }
  double update() const { return updates[updates.size() / 2]; }
};

// Initialises a run in `arena` and makes steps on random tokens: the arithmetic does not depend on them. A
// step of one or two micro-batches has no other than the first and the last: then these count.
StepTimes time_steps(Backend& be, Arena& arena, const RunShape& shape, const OptimizerConfig& optimizer,
                     const TimedSteps& of);

}  // namespace tessera
