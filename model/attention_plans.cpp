#include "model/attention_plans.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace tessera {

template <class Choose>
void AttentionPlans::choose_each(const ModelConfig& config, Choose&& choose) {
  std::vector<BlockSpec> specs;
  for (size_t layer = 0; layer < static_cast<size_t>(config.layers); ++layer) {
    const BlockSpec spec = block_spec(config, layer);
    const auto known = std::ranges::find(specs, spec);
    of_block_.push_back(static_cast<size_t>(known - specs.begin()));
    if (known != specs.end()) continue;
    specs.push_back(spec);
    distinct_.push_back(choose(spec));
  }
}

AttentionPlans::AttentionPlans(const ModelConfig& config, const AttentionRequest& request) {
  choose_each(config, [&](const BlockSpec& spec) {
    AttentionRequest own = request;
    // A window of all keys hides none, and kernels are faster without one.
    AttentionShape& shape = own.shape;
    shape.mask.window = spec.window < shape.kv_tokens ? spec.window : 0;
    // Of a text that is continued, keys before all windows are not there: see UnrolledKeys.
    if (shape.mask.window > 0 && shape.mask.offset >= shape.mask.window) {
      const int64_t unseen = shape.mask.offset - (shape.mask.window - 1);
      shape.kv_tokens -= unseen, shape.mask.offset -= unseen;
    }
    return Plan{.plan = choose_attention(own), .decode = {}};
  });
}

AttentionPlans AttentionPlans::decoding(const ModelConfig& config, const DecodeShape& shape, DType dtype,
                                        const DeviceTraits& device) {
  AttentionPlans plans;
  plans.choose_each(config, [&](const BlockSpec& spec) {
    DecodeShape own = shape;
    own.ring = spec.window != Windows::kFull && spec.window < shape.capacity;
    if (own.ring) own.capacity = spec.window;
    const DecodePlan decode = choose_decode(own, dtype, device);
    return Plan{.plan = {.shape = {.batch = shape.batch,
                                   .tokens = 1,
                                   .heads = shape.heads,
                                   .head_dim = shape.head_dim,
                                   .mask = {/*is_causal=*/true},
                                   .kv_heads = shape.kv_heads},
                         .dtype = dtype,
                         .scale = decode.scale,
                         .forward_workspace_bytes = decode.workspace_bytes},
                .decode = decode};
  });
  return plans;
}

int64_t AttentionPlans::forward_workspace_bytes() const {
  int64_t most = 0;
  for (const Plan& one : distinct_) most = std::max(most, one.plan.forward_workspace_bytes);
  return most;
}

}  // namespace tessera
