// The tensors that a forward keeps for its backward.
#pragma once

#include <vector>

#include "kernels/attention/choose.h"
#include "kernels/base/arena.h"
#include "model/keep.h"
#include "model/params.h"

namespace tessera {

// The tensors of one block, in the order that its forward writes them. N = B T rows. The block's backward
// overwrites norm1.y, norm2.y and mlp with gradients.
struct BlockSaved {
  NormSaved norm1;
  AttentionSaved attention;
  Tensor residual_mid;  // [N, C]   input + attention output
  NormSaved norm2;
  MlpSaved mlp;
  Tensor residual_out;  // [N, C]   residual_mid + MLP output: the next block's input
};

// Calls visit(SavedInfo, Tensor&) for every tensor of a block.
template <class S, class Visit>
void visit_block_saved(S& block, const ModelConfig& config, const AttentionPlan& plan, Visit&& visit) {
  const int64_t N = plan.shape.batch * plan.shape.tokens, C = config.channels;
  const DType t = plan.dtype;
  visit_norm_saved(block.norm1, config, N, t, Stage::kNorm1, {"norm 1", "norm 1 mean", "norm 1 rstd"}, visit);
  visit_attention_saved(block.attention, config, plan, visit);
  visit(SavedInfo{Stage::kOut, "residual after attention", t, {N, C}}, block.residual_mid);
  visit_norm_saved(block.norm2, config, N, t, Stage::kNorm2, {"norm 2", "norm 2 mean", "norm 2 rstd"}, visit);
  visit_mlp_saved(block.mlp, config, N, t, visit);
  visit(SavedInfo{Stage::kContract, "residual after MLP", t, {N, C}}, block.residual_out);
}

struct Saved {
  Tensor embedded;  // [N, C]
  std::vector<BlockSaved> blocks;
  NormSaved norm;              // norm.y: overwritten by its gradient in the backward
  Tensor attention_workspace;  // of every block's forward; none unless the attention plan needs it
};

Saved allocate_saved(Arena& arena, const ModelConfig& config, const AttentionPlan& plan, Keep keep);

}  // namespace tessera
