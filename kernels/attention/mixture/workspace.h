// What a mixture of blocks keeps in its workspace. Plain C++: the size is asked for on machines without CUDA.
#pragma once

#include <algorithm>

#include "kernels/attention/mixture/choice.h"
#include "kernels/attention/workspace.h"

namespace tessera::attention {

// To choose blocks
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
  float* means;         // [kv_heads, slots, head_dim] of a sequence: of the keys of the block in each slot
  int32_t* first_keys;  // [batch, heads, tokens, others], see Chosen
  size_t bytes;
};

// Rows of an attention in which each query of a key/value head has a row for each block that it sees. All
// tables are of one sequence and of some of its key/value heads, K; G query heads read each of them.
struct RowTables {
  static constexpr int kAlignment = 128;  // where rows of a block begin that queries may choose
  static constexpr int kChunk = 1024;     // queries whose blocks are counted together

  RowTables(Carver& carver, const AttnProblem& p) {
    const Choice choice = choice_of(p);
    const auto K = static_cast<size_t>(p.kv_heads), G = static_cast<size_t>(p.heads / p.kv_heads),
               T = static_cast<size_t>(p.tokens), N = static_cast<size_t>(p.kv_tokens);
    slots = choice.slots(static_cast<int>(p.kv_tokens));
    chunks = static_cast<int>((p.tokens + kChunk - 1) / kChunk);
    // A block that queries may choose begins and ends at a multiple of kAlignment.
    const int64_t most = p.tokens * static_cast<int64_t>(G) * (choice.others + 1) +
                         int64_t{2} * (kAlignment - 1) * slots;
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

  int64_t rows;  // of each key/value head: enough for any choice
  int slots, chunks;
  int32_t* keys;        // [K, rows, 2]: the keys that a row sees, AttnMask::documents
  int32_t* seen_by;     // [K, N, 2]: the rows that see each key
  int32_t* sources;     // [K, rows]: query x G + query head of a row; -1: it is nobody's, and sees nothing
  int32_t* places;      // [K, T, G, others + 1]: rows of a query, its own block last; -1: none
  int32_t* first_rows;  // [K, N]: the first row of the block that begins at a key
  // [K, chunks, slots]: of the queries of a chunk those that chose a block; then of all chunks before it
  int32_t* counts;
  int32_t* totals;  // [K, slots]: and of all chunks
  int32_t* used;    // [K]: rows up to the last one of a query
};

// The attention of those rows: one sequence for each key/value head
inline AttnProblem problem_of_rows(const AttnProblem& p, const RowTables& tables) {
  AttnProblem rows = p;
  rows.batch = p.kv_heads, rows.heads = rows.kv_heads = 1;
  rows.tokens = tables.rows;
  rows.mask = {};
  rows.mask.documents = tables.keys, rows.mask.seen_by = tables.seen_by;
  rows.sinks = 0;
  return rows;
}

// Of a part of a problem: one sequence, and some key/value heads
struct MixtureWorkspace {
  // `arch` decides nothing but whose workspace is asked for: the largest of all serves.
  static size_t bytes_of_rows(const AttnProblem& rows, bool backward) {
    size_t most = 0;
    for (const int arch : {80, 90})
      most = std::max(most, backward ? attn_backward_workspace(&rows, arch) : attn_forward_workspace(&rows, arch));
    return most;
  }

  MixtureWorkspace(void* memory, const AttnProblem& part, bool backward)
      : carver_(memory),
        choice(carver_.take<uint8_t>(ChoiceWorkspace(nullptr, part).bytes), part),
        tables(carver_, part) {
    const size_t element = part.dtype == ATTN_BF16 ? 2 : 4,
                 count = static_cast<size_t>(part.kv_heads * tables.rows), width = static_cast<size_t>(part.head_dim);
    const auto take_rows = [&] { return carver_.take<uint8_t>(count * width * element); };
    q = take_rows(), out = take_rows();
    if (backward) dout = take_rows(), dq = take_rows();
    lse = carver_.take<float>(count);
    AttnProblem rows = problem_of_rows(part, tables);
    static const int32_t kNone = 0;
    if (memory == nullptr) rows.mask.documents = rows.mask.seen_by = &kNone;
    own_bytes = bytes_of_rows(rows, backward);
    own = carver_.take<uint8_t>(own_bytes);
    bytes = carver_.used();
  }

 private:
  Carver carver_;

 public:
  ChoiceWorkspace choice;
  RowTables tables;
  void *q, *out, *dout = nullptr, *dq = nullptr;  // [K, rows, head_dim] in the problem's dtype
  float* lse;                                     // [K, rows]
  void* own;                                      // of the attention of rows
  size_t own_bytes, bytes;
};

// One sequence of a problem, and `kv_heads` of its key/value heads
inline AttnProblem part_of(const AttnProblem& p, int64_t kv_heads) {
  AttnProblem part = p;
  part.batch = 1, part.heads = p.heads / p.kv_heads * kv_heads, part.kv_heads = kv_heads;
  return part;
}

// Key/value heads at a time, so that a part needs at most kMostBytes, but one at least
inline int64_t kv_heads_at_once(const AttnProblem& p, bool backward) {
  constexpr size_t kMostBytes = size_t{512} << 20;
  const size_t one = MixtureWorkspace(nullptr, part_of(p, 1), backward).bytes;
  return std::clamp<int64_t>(static_cast<int64_t>(kMostBytes / one), 1, p.kv_heads);
}

}  // namespace tessera::attention
