// Mask: which keys a query sees, as a value with methods. From these methods, kernels on both devices derive
// what they go through, what they mask and what they skip.
//
// keys_of(query) is one interval, and neither of its ends falls from one query to the next. queries_of(key)
// has the same property. So the first and the last row of a tile give the smallest interval that holds the
// keys of all its rows, in O(1). No row of the tile sees anything outside this interval.
//
// A mask has three forms, which know different things. AttentionMask (choose.h) belongs to a plan, and knows
// that there are documents. AttnMask (attention.h) belongs to a call in C, and knows where they are. Mask
// belongs to one sequence in a kernel, and knows its sizes. Only mask_of() makes a Mask.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention/alibi.h"
#include "kernels/attention/attention.h"
#include "kernels/base/view.h"

namespace tessera::attention {

// From `begin` up to `end`, which is not included
struct Span {
  int begin, end;

  TESSERA_HOST_DEVICE int size() const { return end - begin; }
  TESSERA_HOST_DEVICE bool empty() const { return begin >= end; }
  TESSERA_HOST_DEVICE bool contains(int i) const { return begin <= i && i < end; }
  TESSERA_HOST_DEVICE bool contains(Span other) const { return begin <= other.begin && other.end <= end; }
  // The tiles of `rows` rows, counted from row 0, that this interval touches
  TESSERA_HOST_DEVICE Span tiles(int rows) const {
    return empty() ? Span{0, 0} : Span{begin / rows, (end - 1) / rows + 1};
  }
  bool operator==(const Span&) const = default;
};

// The first i below `count` for which reached(i) holds; reached() must hold for all later i as well. `count`
// if there is none
template <class Reached>
TESSERA_HOST_DEVICE int first_where(int count, const Reached& reached) {
  int low = 0, high = count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (reached(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// The mask of one sequence: see AttnMask.
struct Mask {
  int queries, keys;
  bool causal = false;
  int offset = 0;
  int window = 0;                         // 0: none
  const int32_t* documents = nullptr;     // [queries, 2] of this sequence; null: none
  const int32_t* seen_by = nullptr;       // [keys, 2]; null: the queries are the tokens of the keys
  const int32_t* query_tokens = nullptr;  // [queries]; null: query i is token i

  // The keys that a query sees: 0 <= begin <= end <= keys
  TESSERA_HOST_DEVICE Span keys_of(int query) const {
    Span seen = documents ? row_of(documents, query) : Span{0, keys};
    if (causal) {
      const int64_t end = int64_t{query} + offset + 1;
      seen.end = clamped(end, seen.begin, seen.end);
      if (window > 0) seen.begin = clamped(end - window, seen.begin, seen.end);
    }
    return seen;
  }
  // The queries that see a key
  TESSERA_HOST_DEVICE Span queries_of(int key) const {
    Span seeing = seen_by ? row_of(seen_by, key) : documents ? row_of(documents, key) : Span{0, queries};
    if (causal) {
      const int64_t first = int64_t{key} - offset;
      seeing.begin = clamped(first, seeing.begin, seeing.end);
      if (window > 0) seeing.end = clamped(first + window, seeing.begin, seeing.end);
    }
    return seeing;
  }
  // The smallest interval with all keys of some rows, which must not be empty or outside; likewise for
  // queries
  TESSERA_HOST_DEVICE Span keys_of(Span rows) const {
    return {keys_of(rows.begin).begin, keys_of(rows.end - 1).end};
  }
  TESSERA_HOST_DEVICE Span queries_of(Span columns) const {
    return {queries_of(columns.begin).begin, queries_of(columns.end - 1).end};
  }
  // Whether every query of `rows` sees every key of `columns`, so that nothing has to be masked
  TESSERA_HOST_DEVICE bool whole(Span rows, Span columns) const {
    return keys_of(rows.begin).end >= columns.end && keys_of(rows.end - 1).begin <= columns.begin;
  }
  TESSERA_HOST_DEVICE bool sees(int query, int key) const { return keys_of(query).contains(key); }
  // The token that a query is, which is its row for dropout (kernels/base/dropout.h)
  TESSERA_HOST_DEVICE int token_of(int query) const { return query_tokens ? query_tokens[query] : query; }

  // The place of a query among the keys
  TESSERA_HOST_DEVICE int position_of(int query) const { return token_of(query) + offset; }
  // The place of a query among those that lists of sparse blocks count: see AttnBlocks
  TESSERA_HOST_DEVICE int listed_place_of(int query) const { return query + offset; }

  // The mask of another sequence of the batch
  TESSERA_HOST_DEVICE Mask of_sequence(int64_t batch) const {
    Mask mask = *this;
    if (documents) mask.documents += batch * queries * 2;
    if (seen_by) mask.seen_by += batch * keys * 2;
    if (query_tokens) mask.query_tokens += batch * queries;
    return mask;
  }
  // Whether it is full or causal with as many keys as queries: such masks need no tables, and N is their only
  // number
  bool plain() const { return keys == queries && offset == 0 && window == 0 && documents == nullptr; }

 private:
  static TESSERA_HOST_DEVICE Span row_of(const int32_t* table, int row) {
    return {table[2 * int64_t{row}], table[2 * int64_t{row} + 1]};
  }
  static TESSERA_HOST_DEVICE int clamped(int64_t x, int low, int high) {
    return static_cast<int>(x < low ? low : x > high ? high : x);
  }
};

// The mask of the first sequence
inline Mask mask_of(const AttnProblem& p) {
  return {.queries = static_cast<int>(p.tokens),
          .keys = static_cast<int>(p.kv_tokens),
          .causal = p.mask.causal != 0,
          .offset = static_cast<int>(p.mask.offset),
          .window = static_cast<int>(p.mask.window),
          .documents = p.mask.documents,
          .seen_by = p.mask.seen_by,
          .query_tokens = p.mask.query_tokens};
}

template <class Problem>  // AttnProblem or AttnDecodeProblem
Alibi alibi_of(const Problem& p) {
  return {.heads = p.alibi_heads, .first_head = p.first_head};
}

}  // namespace tessera::attention
