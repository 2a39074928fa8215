#include "train/memory/run_plan.h"

#include <algorithm>

namespace tessera {
namespace {

// Sets a member of change.config, whose key is `key`.
template <class V>
void set(Change& change, const std::string& key, V& member, std::type_identity_t<V> value) {
  member = value;
  std::erase_if(change.switches, [&](const std::string& s) { return s.starts_with(key + "="); });
  if constexpr (HasWords<V>) {
    change.switches.push_back(fmt::format("{}={}", key, name_of(value)));
  } else if constexpr (requires { name_of(*value); }) {
    change.switches.push_back(fmt::format("{}={}", key, value ? name_of(*value) : "auto"));
  } else if constexpr (requires { text_of(*value); }) {
    change.switches.push_back(fmt::format("{}={}", key, value ? text_of(*value) : "auto"));
  } else {
    change.switches.push_back(fmt::format("{}={}", key, value));
  }
}

Change with_whole_micro_batches(Change change) {
  Config::Train& train = change.config.train;
  const int64_t unit =
      std::max<int64_t>(train.micro_batch, 1) * change.config.sequence_length() * change.config.data_ranks();
  const int64_t whole = std::max(unit, train.tokens_per_step / unit * unit);
  if (whole != train.tokens_per_step) set(change, "train.tokens_per_step", train.tokens_per_step, whole);
  return change;
}

}  // namespace

RunPlan plan_run(const Config& config, const DeviceTraits& device, const MemoryLimit& limit,
                 const EarlierChoices& earlier) {
  RunPlan plan{
      .shape = run_shape(config, device, limit, earlier), .device = device, .memory = {}, .limit = limit};
  plan.memory = plan_stages(plan.shape, device);
  return plan;
}

Change with_micro_batch(Change change, int64_t micro_batch) {
  set(change, "train.micro_batch", change.config.train.micro_batch, micro_batch);
  return with_whole_micro_batches(std::move(change));
}

Change with_recompute(Change change, const ByBlock<Keep>& keep) {
  set(change, "train.recompute", change.config.train.recompute, keep);
  return change;
}

Change with_classifier_chunk(Change change, int64_t tokens) {
  set(change, "train.classifier_chunk", change.config.train.classifier_chunk, tokens);
  return change;
}

Change with_mlp_chunk(Change change, int64_t tokens) {
  set(change, "train.mlp_chunk", change.config.train.mlp_chunk, tokens);
  return change;
}

Change with_attention(Change change, AttentionKind attention) {
  set(change, "model.attention", change.config.model.attention, attention);
  return change;
}

Change with_shard(Change change, Shard shard) {
  set(change, "parallel.shard", change.config.parallel.shard, shard);
  return change;
}

Change with_replicas(Change change, int64_t replicas) {
  set(change, "parallel.replicas", change.config.parallel.replicas, replicas);
  return change;
}

Change with_offload(Change change, Offload offload) {
  set(change, "memory.offload", change.config.memory.offload, offload);
  return change;
}

Change with_moments(Change change, DType moments) {
  set(change, "optimizer.moments", change.config.optimizer.moments, moments);
  return change;
}

Change with_sequence_length(Change change, int64_t tokens) {
  set(change, "train.sequence_length", change.config.train.sequence_length, tokens);
  return with_whole_micro_batches(std::move(change));
}

Change with_context(Change change, int64_t tokens) {
  set(change, "model.context", change.config.model.context, tokens);
  if (change.config.train.sequence_length > 0) return with_sequence_length(std::move(change), tokens);
  return with_whole_micro_batches(std::move(change));
}

int64_t largest_that_fits(int64_t step, int64_t most, const std::function<bool(int64_t)>& fits) {
  const int64_t last = most / step;
  int64_t low = 0, high = 1;  // in steps: low fits (0 counts as fitting), high does not, or is not known to
  while (high <= last && fits(high * step)) low = high, high *= 2;
  high = std::min(high, last + 1);
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (fits(middle * step) ? low : high) = middle;
  }
  return low * step;
}

}  // namespace tessera
