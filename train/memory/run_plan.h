// The memory that a run will need, compared with the memory that is available. --plan prints it, and every
// run checks it before it allocates anything.
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
  int64_t spare() const { return limit.bytes - peak(); }  // if the limit is known
  bool fits_device() const { return !limit.known() || spare() >= 0; }
  // What is offloaded has to fit the host's memory as well.
  int64_t spare_of_host() const { return limit.pinned - memory.host_bytes; }
  bool fits_host() const { return spare_of_host() >= 0; }
  bool fits() const { return fits_device() && fits_host(); }
};

// Error: as run_shape().
RunPlan plan_run(const Config& config, const DeviceTraits& device, const MemoryLimit& limit,
                 const EarlierChoices& earlier = {});

// A configuration with some keys changed, and the switches that change them
struct Change {
  Config config;
  std::vector<std::string> switches;  // "train.micro_batch=32"
};

// `change`, with one more key changed. If train.tokens_per_step is then not a multiple of a micro-batch, it
// becomes the next lower multiple, or one micro-batch.
Change with_micro_batch(Change change, int64_t micro_batch);
Change with_recompute(Change change, const ByBlock<Keep>& keep);
Change with_classifier_chunk(Change change, int64_t tokens);
Change with_mlp_chunk(Change change, int64_t tokens);
Change with_attention(Change change, AttentionKind attention);
Change with_shard(Change change, Shard shard);
Change with_replicas(Change change, int64_t replicas);
Change with_offload(Change change, Offload offload);
Change with_moments(Change change, DType moments);
Change with_sequence_length(Change change, int64_t tokens);
Change with_context(Change change, int64_t tokens);  // model.context and the sequences trained on

// The largest multiple of `step`, up to `most`, for which fits() is true while it is false for the next
// multiple (or the next one is above `most`). 0 if `step` does not fit. If fits() is monotonic, no larger
// multiple fits.
int64_t largest_that_fits(int64_t step, int64_t most, const std::function<bool(int64_t)>& fits);

}  // namespace tessera
