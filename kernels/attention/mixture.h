// A mixture of blocks: its workspace, whose size is computed on machines without CUDA as well; the choice of
// blocks; and decoding.
#pragma once

#include <algorithm>

#include "kernels/attention/choice.h"
#include "kernels/attention/workspace.h"

namespace tessera::attention {

// The buffers in which blocks are chosen
struct ChoiceWorkspace {
  ChoiceWorkspace(void* memory, const AttnProblem& p) {
    const Choice choice = choice_of(p);
    Carver carver(memory);
    slots = choice.slots(static_cast<int>(p.kv_tokens));
    const auto count = static_cast<size_t>(slots);
    means = carver.take<float>(static_cast<size_t>(p.kv_heads * p.head_dim) * count);
    first_keys = carver.take<int32_t>(static_cast<size_t>(p.batch * p.heads * p.tokens * choice.others));
    bytes = carver.used();
  }

  int slots;
  float* means;         // [kv_heads, slots, head_dim] of one sequence: the mean key of the block in each slot
  int32_t* first_keys;  // [batch, heads, tokens, others], see Chosen
  size_t bytes;
};

// The tables of an attention in which a query has a row for each block that it sees. They are for one
// sequence and K of its key/value heads, each of which G query heads read.
struct RowTables {
  static constexpr int kAlignment = 128;  // the rows of a block that queries may choose begin at a multiple
  static constexpr int kChunk = 1024;     // queries whose blocks are counted together

  RowTables(Carver& carver, const AttnProblem& p) {
    const Choice choice = choice_of(p);
    const auto K = static_cast<size_t>(p.kv_heads), G = static_cast<size_t>(p.heads / p.kv_heads),
               T = static_cast<size_t>(p.tokens), N = static_cast<size_t>(p.kv_tokens);
    slots = choice.slots(static_cast<int>(p.kv_tokens));
    chunks = static_cast<int>((p.tokens + kChunk - 1) / kChunk);
    // The rows of a block that queries may choose begin and end at a multiple of kAlignment.
    const int64_t most =
        p.tokens * static_cast<int64_t>(G) * (choice.others + 1) + int64_t{2} * (kAlignment - 1) * slots;
    rows = (most + kAlignment - 1) / kAlignment * kAlignment;
    const auto R = static_cast<size_t>(rows), S = static_cast<size_t>(slots);
    keys = carver.take<int32_t>(K * R * 2);
    seen_by = carver.take<int32_t>(K * N * 2);
    sources = carver.take<int32_t>(K * R);
    places = carver.take<int32_t>(K * T * G * static_cast<size_t>(choice.others + 1));
    first_rows = carver.take<int32_t>(K * N);
    counts = carver.take<int32_t>(K * static_cast<size_t>(chunks) * S);
    totals = carver.take<int32_t>(K * S);
    used = carver.take<int32_t>(K);
  }

  // The tables of key/value heads `head` and later. `p` is the problem of all of them.
  RowTables from_head(int64_t head, const AttnProblem& p) const {
    const int64_t N = p.kv_tokens, of_queries = p.tokens * (p.heads / p.kv_heads) * (choice_of(p).others + 1);
    RowTables t = *this;
    t.keys += head * rows * 2, t.seen_by += head * N * 2, t.sources += head * rows,
        t.places += head * of_queries;
    t.first_rows += head * N, t.counts += head * chunks * slots, t.totals += head * slots, t.used += head;
    return t;
  }

  int64_t rows;  // of each key/value head: enough for any choice
  int slots, chunks;
  int32_t* keys;        // [K, rows, 2]: the keys that a row sees, as AttnMask::documents
  int32_t* seen_by;     // [K, N, 2]: the rows that see each key
  int32_t* sources;     // [K, rows]: query x G + query head of each row; -1: an unused row, which sees no key
  int32_t* places;      // [K, T, G, others + 1]: the rows of a query, the row of its own block last; -1: none
  int32_t* first_rows;  // [K, N]: the first row of the block that begins at a key
  // [K, chunks, slots]: how many queries of a chunk chose a block; later, how many of all chunks before it
  int32_t* counts;
  int32_t* totals;  // [K, slots]: how many queries of all chunks chose a block
  int32_t* used;    // [K]: the number of rows up to the end of the last block
};

// The problem of the rows: each key/value head is a sequence with one head.
inline AttnProblem problem_of_rows(const AttnProblem& p, const RowTables& tables) {
  AttnProblem rows = p;
  rows.batch = p.kv_heads, rows.heads = rows.kv_heads = 1;
  rows.tokens = tables.rows;
  rows.mask = {};
  rows.mask.documents = tables.keys, rows.mask.seen_by = tables.seen_by;
  rows.sinks = 0;
  return rows;
}

// The problem of one sequence and `kv_heads` of its key/value heads
inline AttnProblem part_of(const AttnProblem& p, int64_t kv_heads) {
  AttnProblem part = p;
  part.batch = 1, part.heads = p.heads / p.kv_heads * kv_heads, part.kv_heads = kv_heads;
  return part;
}

// The workspace: the choice and the tables of one sequence, and rows of `kv_heads` of its key/value heads at
// a time
struct MixtureWorkspace {
  MixtureWorkspace(void* memory, const AttnProblem& p, bool backward, int64_t heads_at_once)
      : MixtureWorkspace(Carver(memory), part_of(p, p.kv_heads), backward, heads_at_once) {}

  ChoiceWorkspace choice;
  RowTables tables;
  int64_t kv_heads;
  void *q, *out, *dout = nullptr, *dq = nullptr;  // [kv_heads, rows, head_dim] in the problem's dtype
  float* lse;                                     // [kv_heads, rows]
  void* own;                                      // the workspace of the attention of rows
  size_t own_bytes, bytes;

 private:
  MixtureWorkspace(Carver carver, const AttnProblem& p, bool backward, int64_t heads_at_once)
      : choice(carver.take<uint8_t>(ChoiceWorkspace(nullptr, p).bytes), p),
        tables(carver, p),
        kv_heads(heads_at_once) {
    const size_t element = p.dtype == ATTN_BF16 ? 2 : 4, count = static_cast<size_t>(kv_heads * tables.rows),
                 row_bytes = static_cast<size_t>(p.head_dim) * element;
    q = carver.take<uint8_t>(count * row_bytes), out = carver.take<uint8_t>(count * row_bytes);
    if (backward)
      dout = carver.take<uint8_t>(count * row_bytes), dq = carver.take<uint8_t>(count * row_bytes);
    lse = carver.take<float>(count);
    own_bytes = bytes_of_rows(problem_of_rows(part_of(p, kv_heads), tables), backward);
    own = carver.take<uint8_t>(own_bytes);
    bytes = carver.used();
  }
  // The most that any device needs, since the device is not known here
  static size_t bytes_of_rows(AttnProblem rows, bool backward) {
    static const int32_t kNone = 0;  // where tables will be
    rows.mask.documents = rows.mask.seen_by = &kNone;
    size_t most = 0;
    for (const int arch : {80, 90})
      most = std::max(most,
                      backward ? attn_backward_workspace(&rows, arch) : attn_forward_workspace(&rows, arch));
    return most;
  }
};

// The number of key/value heads whose rows are gathered at a time: as many as fit kMostBytes, at least one. A
// call with more heads keeps more multiprocessors busy at its end.
inline int64_t kv_heads_at_once(const AttnProblem& p, bool backward) {
  constexpr size_t kMostBytes = size_t{4} << 30;
  if (p.kv_heads == 1) return 1;
  const size_t one = MixtureWorkspace(nullptr, p, backward, 1).bytes,
               each = MixtureWorkspace(nullptr, p, backward, 2).bytes - one;
  const size_t more = one < kMostBytes ? (kMostBytes - one) / each : 0;
  return std::min(p.kv_heads, 1 + static_cast<int64_t>(more));
}

// The problem of sequence `b`, with all its heads
inline AttnProblem sequence_of(const AttnProblem& p, int64_t b) {
  AttnProblem one = part_of(p, p.kv_heads);
  if (one.mask.documents != nullptr) one.mask.documents += b * p.tokens * 2;
  if (one.mask.seen_by != nullptr) one.mask.seen_by += b * p.kv_tokens * 2;
  one.mask.query_tokens = nullptr;  // only dropout and ALiBi need them
  return one;
}
// The tensor of a problem from sequence `b` and head `head` on
inline AttnTensor heads_from(AttnTensor t, const AttnProblem& p, int64_t b, int64_t head) {
  const int64_t element = p.dtype == ATTN_BF16 ? 2 : 4;
  t.data = static_cast<char*>(t.data) + (b * t.batch + head * t.head) * element;
  return t;
}

// Writes the choice of a problem of one sequence to workspace.first_keys. `q` and `k` begin at the first head
// of the sequence.
AttnStatus choose_blocks(const AttnProblem& p, const AttnTensor& q, const AttnTensor& k,
                         const ChoiceWorkspace& workspace, CUstream_st* stream);

// Over a cache, blocks are counted from the first token of a sequence, as if it were one document. The cache
// keeps the means of whole blocks.
namespace mixture {

// Writes the means of the blocks that the tokens starts[b] to starts[b] + tokens - 1 complete. Sequences with
// starts[b] < 0 are idle.
struct CompleteMeans {
  AttnDtype dtype;
  AttnTensor k;           // [batch, capacity, kv_heads, head_dim]
  const int32_t* starts;  // [batch], device memory
  int64_t batch, capacity, kv_heads, tokens;
  int head_dim, size;  // size: tokens of a block
  float* means;        // [batch, kv_heads, slots, head_dim], slots = capacity / size rounded up
};
AttnStatus complete_means(const CompleteMeans& a, CUstream_st* stream);

// As attn_decode(), where each query head chooses blocks; a.problem.blocks is not read
struct MixtureDecode {
  AttnDecode call{};
  AttnChoice choice{};
  const float* means = nullptr;  // of every whole block before the new token's block
};
size_t decode_workspace(const AttnDecodeProblem& p, const AttnChoice& choice);  // bytes
AttnStatus decode(const MixtureDecode& a, CUstream_st* stream);

}  // namespace mixture
}  // namespace tessera::attention
