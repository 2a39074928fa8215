// The largest context or micro-batch that fits a device, found with exact plans.
#pragma once

#include <optional>
#include <string>

#include "train/memory/run_plan.h"

namespace tessera {

struct Fit {
  const char* what;    // "context" in tokens, "micro-batch" in sequences
  int64_t step;        // the distance of the values that are tried
  int64_t value = 0;   // the largest that fits; 0: not even `step`
  Change change;       // sets this value, or `step` if that does not fit
  RunPlan plan;        // the plan with that change
  std::string beyond;  // why value + step does not fit
  // fit_batch(): the largest value that leaves train.tokens_per_step as it is, if it differs from `value`
  std::optional<Change> same_step = {};
};

// The longest sequences that fit, with model.context of the same length: a multiple of kContextStep. A
// train.micro_batch of auto becomes 1. `weights`: see data_weights.h. Error: no limit is known; the errors of
// run_shape() for the shortest length.
Fit fit_context(const Config& config, const DeviceTraits& device, const MemoryLimit& limit,
                bool weights = false);
// The largest train.micro_batch that fits. It changes train.tokens_per_step if it must.
Fit fit_batch(const Config& config, const DeviceTraits& device, const MemoryLimit& limit,
              bool weights = false);

}  // namespace tessera
