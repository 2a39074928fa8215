#include "model/block_spec.h"

#include "kernels/base/check.h"

namespace tessera {

BlockSpec block_spec(const ModelConfig& config, size_t layer) {
  const int64_t window = config.window.at(layer);
  const SparsePattern sparse = config.sparse.at(layer);
  check(window == Windows::kFull || !sparse,
        "block {} has a window of {} tokens and sparse attention ({}): a block has one of them", layer,
        window, SparseRun::text(sparse));
  const bool experts = config.experts.in_block(static_cast<int64_t>(layer));
  const bool rotary = config.positions == Positions::kRope;
  return {.window = window,
          .sparse = sparse,
          .rotary = rotary,
          .local_angles = rotary && window != Windows::kFull && config.rope.local_theta > 0,
          .scores = {.sinks = config.attention_sinks,
                     .alibi_heads = config.positions == Positions::kAlibi ? config.heads : 0,
                     .cap = static_cast<float>(config.attention_cap)},
          .norm = config.norm,
          .norm_place = config.norm_place,
          .mlp = config.mlp,
          .experts = experts,
          .shared_expert = experts && config.experts.shared_width > 0};
}

}  // namespace tessera
