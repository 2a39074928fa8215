#include "model/attention_plans.h"

#include <algorithm>

namespace tessera {

template <class Choose>
AttentionPlans::AttentionPlans(const BlockKinds& kinds, Choose&& choose) : of_block_(kinds.of_block()) {
  for (const BlockKind& kind : kinds.distinct()) distinct_.push_back(choose(kind.spec));
}

AttentionPlans::AttentionPlans(const BlockKinds& kinds, const AttentionRequest& request)
    : AttentionPlans(kinds, [&](const BlockSpec& spec) {
        AttentionRequest own = request;
        // A window of all keys hides none, and kernels are faster without one.
        AttentionShape& shape = own.shape;
        shape.scores = spec.scores;
        shape.mask.window = spec.window < shape.kv_tokens ? spec.window : 0;
        // A text that is continued has no keys before all windows: see UnrolledKeys.
        if (shape.mask.window > 0 && shape.mask.offset >= shape.mask.window) {
          const int64_t unseen = shape.mask.offset - (shape.mask.window - 1);
          shape.kv_tokens -= unseen, shape.mask.offset -= unseen;
        }
        return Plan{.plan = choose_attention(own), .decode = {}};
      }) {}

AttentionPlans AttentionPlans::decoding(const BlockKinds& kinds, const DecodeShape& shape, DType dtype,
                                        const DeviceTraits& device) {
  return AttentionPlans(kinds, [&](const BlockSpec& spec) {
    DecodeShape own = shape;
    own.ring = spec.window != Windows::kFull && spec.window < shape.capacity;
    if (own.ring) own.capacity = spec.window;
    if (!keeps_codes(shape.cache, spec.window, shape.capacity)) own.cache = CacheDtype::kAuto;
    own.scores = spec.scores;
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
}

int64_t AttentionPlans::forward_workspace_bytes() const {
  int64_t most = 0;
  for (const Plan& one : distinct_) most = std::max(most, one.plan.forward_workspace_bytes);
  return most;
}

}  // namespace tessera
