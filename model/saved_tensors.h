// The tensors that a forward saves for its backward.
#pragma once

#include <vector>

#include "model/params.h"

namespace tessera {

// What attention or the MLP adds to the residual stream, before the norm that follows it. Only if a block has
// such a norm
struct BranchSaved {
  Tensor x, rstd;  // [N, C] [N]
};

// The tensors of one block, in the order in which its forward writes them. N = B T rows. The block's backward
// overwrites norm1.y, norm2.y, mlp and experts with gradients. With Model::mlp_chunk, pre_activation, hidden
// and expand_adapter have only the rows of a chunk.
struct BlockSaved {
  NormSaved norm1;
  AttentionSaved attention;
  BranchSaved attention_branch;
  Tensor residual_mid;  // [N, C]   input + what attention adds
  NormSaved norm2;
  MlpSaved mlp;          // of blocks without experts
  ExpertsSaved experts;  // of the others
  BranchSaved mlp_branch;
  Tensor residual_out;  // [N, C]   residual_mid + what the MLP adds: the next block's input
};

struct Saved {
  Tensor embedded;  // [N, C]
  Tensor
      before_norm;  // [N, C]: of which `embedded` is the norm; as the next, only with model.norm_embeddings
  NormSaved embedding_norm;
  std::vector<BlockSaved> blocks;
  NormSaved norm;              // norm.y: overwritten by its gradient in the backward
  Tensor attention_workspace;  // for the forward of every block; none unless an attention plan needs it
  ContextBuffers context;      // likewise; only if a context has several ranks
  Tensor expert_rows;          // [R, C]: what each expert adds, and its gradient; only if there are experts

  const Tensor& block_input(size_t layer) const {  // with layer = L: the input of the final norm
    return layer == 0 ? embedded : blocks[layer - 1].residual_out;
  }
};

}  // namespace tessera
