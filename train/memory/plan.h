// A run's memory before it runs, held against what there is: the one answer to "does it fit", for --plan and
// for every run before it obtains anything.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "train/config/config.h"
#include "train/session/from_config.h"
#include "train/session/memory_limit.h"
#include "train/session/memory_plan.h"

namespace tessera {

inline constexpr int64_t kContextStep = 128;  // tokens; rows of a tile of the fused kernels

struct RunPlan {
  RunShape shape;
  DeviceTraits device;
  MemoryPlan memory;
  MemoryLimit limit;

  int64_t peak() const { return memory.ledger.peak_bytes(); }
  int64_t spare() const { return limit.bytes - peak(); }  // where the limit is known
  bool fits() const { return !limit.known() || spare() >= 0; }
};

// Error: as run_shape().
RunPlan plan_run(const Config& config, const DeviceTraits& device, const MemoryLimit& limit,
                 int64_t micro_batch = 0);

// A configuration with some of its keys changed, and how to say so.
struct Change {
  Config config;
  std::vector<std::string> switches;  // "train.micro_batch=32"
};

// The change with one more. Where train.tokens_per_step would no longer be whole micro-batches it becomes the
// largest number below that is, or one micro-batch.
Change with_micro_batch(Change change, int64_t micro_batch);
Change with_recompute(Change change, Keep keep);
Change with_classifier_chunk(Change change, int64_t tokens);
Change with_attention(Change change, AttentionKind attention);
Change with_moments(Change change, DType moments);
Change with_sequence_length(Change change, int64_t tokens);
Change with_context(Change change, int64_t tokens);  // model.context and the sequences trained on

// The largest multiple of `step`, at most `most`, for which fits() holds while that of the next multiple does
// not (or is beyond `most`); 0 if not even `step` fits. Where more never needs less, no larger one fits.
int64_t largest_that_fits(int64_t step, int64_t most, const std::function<bool(int64_t)>& fits);

}  // namespace tessera
