// Context parallelism: S ranks share the tokens of each sequence (parallel.context). The host gives each rank
// T of its T_all tokens (train/session/context_deal.h). A rank computes everything for its tokens by itself,
// but attention needs the other tokens. Attention gathers keys and values of all tokens, which are usually
// few heads, and puts them in the order of the sequence. So a query sees the same keys in the same order as
// on one rank, and the forward and dQ have the same sums. In the backward each rank computes dK and dV of all
// tokens for its own queries. They are summed in fp32 over the ranks, in the communicator's order, and each
// rank keeps the sums for its tokens. Gathering keys and values: Dubey et al., "The Llama 3 Herd of Models",
// arXiv:2407.21783, section 3.3.2.
//
// Attention takes some of the heads at a time, a part. While it computes one part, the next part is gathered
// and the gradients of the part before are summed. Only one part at a time has memory of its own.
#pragma once

#include "kernels/attention/choose.h"
#include "kernels/base/arena.h"
#include "kernels/communicator.h"
#include "kernels/stream.h"

namespace tessera {

// Tables of a batch, int32 on the device. The rows of gathered heads are in the order of ranks, then of
// sequences.
struct ContextTables {
  Tensor gathered_rows = {};   // [B T_all]: the row of the gathered heads that each token has
  Tensor scattered_rows = {};  // [S B T]: the token that each row of the gathered heads has, or -1
};

// The memory of a part with K heads of keys. All parts of all blocks of a pass share it.
struct ContextBuffers {
  Tensor gathered;  // [S B, T, 2 K, D]: keys, then values
  Tensor keys;      // [B, T_all, 2 K, D], in the order of the tokens
};
struct ContextBackward {
  Tensor d_keys;      // [B, T_all, 2 K, D]
  Tensor d_gathered;  // [S B, T, 2 K, D] fp32
};

// What a pass needs if its context has several ranks
struct ContextPass {
  Communicator* axis = nullptr;  // null: one rank
  ContextTables tables = {};
  ContextBuffers buffers = {};

  explicit operator bool() const { return axis != nullptr; }
  // The rows of `gathered` that belong to this rank
  Tensor own(const Tensor& gathered) const;
};

// The number of heads of keys in a part: a divisor of shape.kv_heads, the largest whose buffers take up to 2
// GiB. Few heads at a time are slower: at its end attention of a part fills the device less well, and NCCL's
// kernels take multiprocessors from it.
int64_t heads_of_part(const AttentionShape& shape);

// The buffers for parts with the heads of `part`. The tokens of `part` are those of one rank.
ContextBuffers allocate_context(Arena& arena, int64_t ranks, const AttentionShape& part, DType dtype);
ContextBackward allocate_context_backward(Arena& arena, const ContextBuffers& like);

struct KeysAndValues {
  Heads k, v;
};

// Keys and values of all ranks, part by part
class GatheredKeys {
 public:
  // `own`: all heads, for this rank's tokens. Starts to gather the first part.
  GatheredKeys(const Stream& stream, const ContextPass& context, const KeysAndValues& own, int64_t parts);
  // The keys and values of the next part; they are in context.buffers.keys until the next call. Starts to
  // gather the part after it.
  KeysAndValues next();

 private:
  void begin();

  const Stream& stream_;
  const ContextPass& context_;
  KeysAndValues own_;
  int64_t parts_, part_ = 0;  // part_: the part that is being gathered
  int64_t started_ = 0;       // the number of collectives up to and including the one for that part
};

// Gradients of keys and values for this rank's tokens, summed over the ranks part by part
class KeyGradients {
 public:
  // `own`: all heads, for this rank's tokens; it is written
  KeyGradients(const Stream& stream, const ContextPass& context, const ContextBackward& buffers,
               const KeysAndValues& own, int64_t parts);
  KeysAndValues of_part() const;  // where this rank writes the gradients of a part, for its queries
  void sum();                     // starts to sum this part over the ranks, and finishes the part before
  void finish();                  // finishes the last part

 private:
  const Stream& stream_;
  const ContextPass& context_;
  const ContextBackward& buffers_;
  KeysAndValues own_;
  int64_t parts_, part_ = 0;  // part_: the part that is being computed
};

// Part `index` of `parts` equal parts of some heads
inline Heads part_of(const Heads& heads, int64_t index, int64_t parts) {
  const int64_t count = heads.count / parts;
  return {heads.tensor, heads.first + index * count, count};
}

}  // namespace tessera
