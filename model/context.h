// Context parallelism: S ranks share the tokens of each sequence (parallel.context). Each has T of its T_all
// tokens, dealt by the host (train/session/context_deal.h), and computes everything about them alone; only
// attention needs the others. It gathers keys and values of all tokens, which are few heads as a rule, and
// puts them in the order of the sequence. A query sees the same keys in the same order as on one rank, so
// the forward and dQ have the same sums. In the backward each rank has dK and dV of all tokens for its own
// queries; they are summed in fp32 over the ranks, in the communicator's order, and each rank keeps those of
// its tokens. Gathering keys and values: Dubey et al., "The Llama 3 Herd of Models", arXiv:2407.21783,
// section 3.3.2.
#pragma once

#include "kernels/base/arena.h"
#include "kernels/communicator.h"
#include "kernels/stream.h"

namespace tessera {

// Of a batch, int32 on the device. Rows of the gathered heads: rank by rank, then sequence by sequence
struct ContextTables {
  Tensor gathered_rows = {};   // [B T_all]: for each token, its row of the gathered heads
  Tensor scattered_rows = {};  // [S B T]: for each row of the gathered heads its token, or -1
};

// What the blocks of a pass share
struct ContextBuffers {
  Tensor gathered;  // [S B, T, 2 K, D]: keys, then values
  Tensor keys;      // [B, T_all, 2 K, D], in the order of the tokens
};
struct ContextBackward {
  Tensor d_keys;      // [B, T_all, 2 K, D]
  Tensor d_gathered;  // [S B, T, 2 K, D] fp32
};

// A pass of a model whose context has several ranks
struct ContextPass {
  Communicator* axis = nullptr;  // null: one rank
  ContextTables tables = {};
  ContextBuffers buffers = {};

  explicit operator bool() const { return axis != nullptr; }
  // This rank's rows of gathered heads
  Tensor own(const Tensor& gathered) const;
};

struct ContextShape {
  int64_t ranks, batch, tokens, all_tokens, kv_heads, head_dim;
  DType dtype;
};
ContextBuffers allocate_context(Arena& arena, const ContextShape& shape);
ContextBackward allocate_context_backward(Arena& arena, const ContextBuffers& like);

// Fills buffers.keys with the keys and values of all ranks; `k` and `v`: of this rank's tokens.
void gather_keys(const Stream& stream, const ContextPass& context, const Heads& k, const Heads& v);
// Writes dk and dv of this rank's tokens: sums over the ranks of backward.d_keys.
void reduce_key_gradients(const Stream& stream, const ContextPass& context, const ContextBackward& backward,
                          const Heads& dk, const Heads& dv);

}  // namespace tessera
