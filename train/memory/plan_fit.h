// The largest context, or micro-batch, that fits a device, found over exact plans.
#pragma once

#include <optional>
#include <string>

#include "train/memory/plan.h"

namespace tessera {

struct Fit {
  const char* what;    // "context" in tokens, "micro-batch" in sequences
  int64_t step;        // the distance of the values tried
  int64_t value = 0;   // the largest that fits; 0: not even `step`
  Change change;       // to this value, or to `step`
  RunPlan plan;        // of that change
  std::string beyond;  // why value + step does not fit
  // fit_batch: the largest that leaves train.tokens_per_step as it is, if another one
  std::optional<Change> same_step = {};
};

// The longest sequences that can be trained on, model.context with them: a multiple of kContextStep. A
// train.micro_batch of auto becomes 1. Error: no limit is known, and what run_shape() refuses for the
// smallest.
Fit fit_context(const Config& config, const DeviceTraits& device, const MemoryLimit& limit);
// The largest train.micro_batch; train.tokens_per_step follows where it must.
Fit fit_batch(const Config& config, const DeviceTraits& device, const MemoryLimit& limit);

}  // namespace tessera
