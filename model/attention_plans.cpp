#include "model/attention_plans.h"

#include <algorithm>

#include "model/kv_cache.h"

namespace tessera {

template <class Choose>
AttentionPlans::AttentionPlans(const BlockKinds& kinds, Choose&& choose) : of_block_(kinds.of_block()) {
  for (const BlockKind& kind : kinds.distinct()) distinct_.push_back(choose(kind.spec));
}

namespace {

BlockChoice choice_of(const SparsePattern& pattern, int64_t tokens) {
  if (!pattern.chooses(tokens)) return {};
  return {.size = pattern.block, .count = pattern.chosen};
}

// The queries are tokens of one text, which begin within a sparse block: kernels for tiles of queries take
// whole ones only.
bool begins_within_a_block(const AttentionShape& shape) {
  const BlockShape& blocks = shape.mask.blocks;
  return blocks.size > 0 && shape.batch == 1 && shape.mask.offset % blocks.size != 0;
}

}  // namespace

AttentionPlans::AttentionPlans(const BlockKinds& kinds, const AttentionRequest& request,
                               const SparseLists& sparse)
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
        shape.mask.choice = choice_of(spec.sparse, shape.kv_tokens);
        if (spec.sparse) shape.mask.blocks = sparse.shape_of(spec.sparse, shape.mask.offset, shape.kv_tokens);
        if (!begins_within_a_block(shape)) return Plan{.plan = choose_attention(own), .decode = {}};
        const DecodePlan decode = choose_decode({.batch = shape.tokens,
                                                 .heads = shape.heads,
                                                 .head_dim = shape.head_dim,
                                                 .kv_heads = shape.kv_heads,
                                                 .capacity = shape.kv_tokens,
                                                 .scores = shape.scores,
                                                 .one_cache = true,
                                                 .blocks = shape.mask.blocks},
                                                own.dtype, own.device);
        return Plan{.plan = {.kind = own.kind, .shape = shape, .dtype = own.dtype, .scale = decode.scale},
                    .decode = decode};
      }) {}

AttentionPlans AttentionPlans::decoding(const BlockKinds& kinds, const DecodeRequest& request,
                                        const SparseLists& sparse) {
  const DecodeShape& shape = request.shape;
  return AttentionPlans(kinds, [&](const BlockSpec& spec) {
    DecodeShape own = shape;
    own.ring = spec.window != Windows::kFull && spec.window < shape.capacity;
    if (own.ring) own.capacity = spec.window;
    if (!keeps_codes(shape.cache, spec.window, shape.capacity)) own.cache = CacheDtype::kAuto;
    own.scores = spec.scores;
    own.choice = choice_of(spec.sparse, shape.capacity);
    own.blocks = sparse.shape_of(spec.sparse, 0, shape.capacity);
    const DecodePlan decode = choose_decode(own, request.dtype, request.device);
    return Plan{.plan = {.shape = {.batch = shape.batch,
                                   .tokens = 1,
                                   .heads = shape.heads,
                                   .head_dim = shape.head_dim,
                                   .mask = {/*is_causal=*/true},
                                   .kv_heads = shape.kv_heads},
                         .dtype = request.dtype,
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
