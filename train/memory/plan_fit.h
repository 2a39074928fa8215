// The largest context, or micro-batch, that fits a device, found from exact plans.
#pragma once

#include <optional>
#include <string>

#include "train/memory/run_plan.h"

namespace tessera {

struct Fit {
  const char* what;    // "context" in tokens, "micro-batch" in sequences
  int64_t step;        // between the values tried
  int64_t value = 0;   // the largest that fits; 0: not even `step`
  Change change;       // to this value, or to `step`
  RunPlan plan;        // of that change
  std::string beyond;  // why value + step does not fit
  // fit_batch: the largest that keeps train.tokens_per_step, if that is another one
  std::optional<Change> same_step = {};
};

// The longest sequences that fit, with model.context of the same length: a multiple of kContextStep. A
// train.micro_batch of auto becomes 1. Error: no limit is known, and the errors of run_shape() for the
// smallest. `weights`: see data_weights.h
Fit fit_context(const Config& config, const DeviceTraits& device, const MemoryLimit& limit,
                bool weights = false);
// The largest train.micro_batch; train.tokens_per_step changes if it must.
Fit fit_batch(const Config& config, const DeviceTraits& device, const MemoryLimit& limit,
              bool weights = false);

}  // namespace tessera
