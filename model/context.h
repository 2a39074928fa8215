// Context parallelism: S ranks share the tokens of each sequence (parallel.context). Each has T of its T_all
// tokens, dealt by the host (train/session/context_deal.h), and computes everything about them alone; only
// attention needs the others. It gathers keys and values of all tokens, which are few heads as a rule, and
// puts them in the order of the sequence. A query sees the same keys in the same order as on one rank, so
// the forward and dQ have the same sums. In the backward each rank has dK and dV of all tokens for its own
// queries; they are summed in fp32 over the ranks, in the communicator's order, and each rank keeps those of
// its tokens. Gathering keys and values: Dubey et al., "The Llama 3 Herd of Models", arXiv:2407.21783,
// section 3.3.2.
//
// Attention takes some of the heads at a time (a part). While it computes one part, the next one is gathered
// and the gradients of the one before are summed; and only one part has memory of its own.
#pragma once

#include "kernels/attention/choose.h"
#include "kernels/base/arena.h"
#include "kernels/communicator.h"
#include "kernels/stream.h"

namespace tessera {

// Of a batch, int32 on the device. Rows of the gathered heads: rank by rank, then sequence by sequence
struct ContextTables {
  Tensor gathered_rows = {};   // [B T_all]: for each token, its row of the gathered heads
  Tensor scattered_rows = {};  // [S B T]: for each row of the gathered heads its token, or -1
};

// Of a part, with K heads of keys; shared by all parts of all blocks of a pass
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

// The heads of keys of a part: the most whose buffers below take up to 2 GiB, a divisor of shape.kv_heads.
// Few heads at a time are slower: attention of a part fills the device less well at its end, and NCCL's
// kernels take multiprocessors from it.
int64_t heads_of_part(const AttentionShape& shape);

// The buffers of parts with the heads of `part`, whose tokens are those of one rank
ContextBuffers allocate_context(Arena& arena, int64_t ranks, const AttentionShape& part, DType dtype);
ContextBackward allocate_context_backward(Arena& arena, const ContextBuffers& like);

struct KeysAndValues {
  Heads k, v;
};

// Keys and values of all ranks, part by part
class GatheredKeys {
 public:
  // `own`: of this rank's tokens, all heads. Begins with the first part.
  GatheredKeys(const Stream& stream, const ContextPass& context, const KeysAndValues& own, int64_t parts);
  // Those of the next part, in context.buffers.keys until the next call. Begins with the part after it.
  KeysAndValues next();

 private:
  void begin();

  const Stream& stream_;
  const ContextPass& context_;
  KeysAndValues own_;
  int64_t parts_, part_ = 0;  // that is being gathered
  int64_t started_ = 0;       // collectives, with that one
};

// Gradients of keys and values for this rank's tokens, summed over the ranks part by part
class KeyGradients {
 public:
  // `own`: of this rank's tokens, all heads; written
  KeyGradients(const Stream& stream, const ContextPass& context, const ContextBackward& buffers,
               const KeysAndValues& own, int64_t parts);
  KeysAndValues of_part() const;  // where the gradients of a part go, for this rank's queries
  void sum();                     // begins to sum what is there, and finishes the part before
  void finish();                  // of the last part

 private:
  const Stream& stream_;
  const ContextPass& context_;
  const ContextBackward& buffers_;
  KeysAndValues own_;
  int64_t parts_, part_ = 0;  // that is computed
};

// Part `index` of so many of some heads
inline Heads part_of(const Heads& heads, int64_t index, int64_t parts) {
  const int64_t count = heads.count / parts;
  return {heads.tensor, heads.first + index * count, count};
}

}  // namespace tessera
