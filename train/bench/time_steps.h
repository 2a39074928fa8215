// Times training steps.
#pragma once

#include <functional>
#include <vector>

#include "train/session/train_state.h"

namespace tessera {

struct TimedSteps {
  int64_t warmup = 1, steps = 1;                       // the steps of the warm-up come first and are not
                                                       // timed
  std::function<void(int64_t step)> before_step = {};  // called before each step; step 0 is the first that is
                                                       // timed
  StepAxes axes = {};                                  // of the shape's mesh
};
struct StepTimes {
  std::vector<double> seconds;        // of each step, in ascending order
  std::vector<double> micro_batches;  // of each micro-batch that is neither the first nor the last of its
                                      // step; ascending
  std::vector<double> updates;        // for each step, the time beyond that of its micro-batches; ascending
  double waited = 0;                  // the seconds of a step that were spent waiting for other ranks

  // Medians
  double median() const { return seconds[seconds.size() / 2]; }
  double micro_batch() const { return micro_batches[micro_batches.size() / 2]; }
  double update() const { return updates[updates.size() / 2]; }
};

// Initialises a run in `arena` and makes steps on random tokens, because the arithmetic does not depend on
// the tokens. If a step has only one or two micro-batches, its first and last ones are counted, too.
StepTimes time_steps(Backend& be, Arena& arena, const RunShape& shape, const OptimizerConfig& optimizer,
                     const TimedSteps& of);

}  // namespace tessera
