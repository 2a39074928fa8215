// The tensors that a forward keeps for its backward.
#pragma once

#include <vector>

#include "kernels/attention/choose.h"
#include "kernels/base/arena.h"
#include "model/config.h"
#include "model/keep.h"

namespace tessera {

// The tensors of one block, in the order that its forward writes them. N = B T rows. The block's backward
// overwrites norm1, norm2 and hidden with their own gradients.
struct BlockSaved {
  Tensor norm1, norm1_mean, norm1_rstd;  // [N, C] [N] [N]
  Tensor qkv;                            // [B, T, H + 2K, D]
  Tensor attention;                      // [B, T, H, D]
  Tensor attention_saved;                // log-sum-exp or probabilities, see AttentionPlan
  Tensor residual_mid;                   // [N, C]   input + attention output
  Tensor norm2, norm2_mean, norm2_rstd;
  Tensor pre_activation, hidden;  // [N, F]
  Tensor residual_out;            // [N, C]   residual_mid + MLP output: the next block's input
};

struct Saved {
  Tensor embedded;  // [N, C]
  std::vector<BlockSaved> blocks;
  Tensor norm, norm_mean, norm_rstd;  // norm: overwritten by its gradient in the backward
  Tensor attention_workspace;         // of every block's forward; none unless the attention plan needs it
};

Saved allocate_saved(Arena& arena, const ModelConfig& config, const AttentionPlan& plan, Keep keep);

}  // namespace tessera
