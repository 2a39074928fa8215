// The masks that these kernels are compiled for, and what a CTA and a warp ask them.
//
// Full and causal masks of as many keys as queries have kernels of their own, in which the answers are
// constants and compares; kAny is every mask of kernels/attention/mask.h. There, rows and columns given here
// may reach past the end.
//
// Of any tile, and of any part of one, holds: keys_of(rows) and some columns have a key in common where
// queries_of(those columns) and the rows have a query in common. So CTAs that walk over queries and CTAs, or
// warps, that walk over keys agree on which tiles meet.
#pragma once

#include "kernels/attention/mask.h"

namespace tessera::attention::sm80 {

enum class MaskKind { kFull, kCausal, kAny };

// Tiles of `size` that a span touches; full and causal masks show every query a key.
template <MaskKind kMask>
__device__ __forceinline__ Span tiles_of(Span span, int size) {
  if (kMask == MaskKind::kAny && span.empty()) return {0, 0};
  return {span.begin / size, (span.end + size - 1) / size};
}

inline constexpr int kNever = 0x7fffffff;

template <MaskKind kMask>
struct KernelMask {
  static constexpr bool kCausal = kMask == MaskKind::kCausal;
  int queries, keys;  // equal

  __device__ __forceinline__ KernelMask(const Mask& /*mask*/, int tokens, int /*batch*/)
      : queries(tokens), keys(tokens) {}
  __device__ __forceinline__ Span keys_of(int query) const {
    return {0, kCausal ? min(keys, query + 1) : keys};
  }
  __device__ __forceinline__ Span keys_of(Span rows) const {
    return {0, kCausal ? min(keys, rows.end) : keys};
  }
  // Padded queries count as seeing a key; their probabilities are 0.
  __device__ __forceinline__ Span queries_of(int key) const {
    return {key >= keys ? kNever : kCausal ? key : 0, kNever};
  }
  // Of `tiles` query tiles, those that see a key of a block
  template <int kBlockQ>
  __device__ __forceinline__ Span query_tiles_of(Span columns, int tiles) const {
    return {kCausal ? columns.begin / kBlockQ : 0, tiles};
  }
};

template <>
struct KernelMask<MaskKind::kAny> : Mask {
  __device__ __forceinline__ KernelMask(const Mask& mask, int /*tokens*/, int batch)
      : Mask(mask.of_sequence(batch)) {}
  __device__ __forceinline__ Span keys_of(int query) const { return Mask::keys_of(min(query, queries - 1)); }
  __device__ __forceinline__ Span keys_of(Span rows) const {
    const Span inside = {rows.begin, min(rows.end, queries)};
    return inside.empty() ? Span{0, 0} : Mask::keys_of(inside);
  }
  __device__ __forceinline__ Span queries_of(int key) const {
    return key < keys ? Mask::queries_of(key) : Span{kNever, kNever};
  }
  __device__ __forceinline__ Span queries_of(Span columns) const {
    const Span inside = {columns.begin, min(columns.end, keys)};
    return inside.empty() ? Span{0, 0} : Mask::queries_of(inside);
  }
  template <int kBlockQ>
  __device__ __forceinline__ Span query_tiles_of(Span columns, int /*tiles*/) const {
    return tiles_of<MaskKind::kAny>(queries_of(columns), kBlockQ);
  }
};

// Which keys the queries of a warp see: the same for all key tiles
template <MaskKind kMask>
struct KeysSeen {
  Span rows;
  int keys;

  __device__ __forceinline__ KeysSeen(const KernelMask<kMask>& mask, Span of_rows)
      : rows(of_rows), keys(mask.keys) {}
  __device__ __forceinline__ bool none(Span columns) const {
    return kMask == MaskKind::kCausal && columns.begin >= rows.end;
  }
  __device__ __forceinline__ bool all(Span columns) const {
    const bool cross_end = columns.end > keys,
               cross_diagonal = kMask == MaskKind::kCausal && columns.end > rows.begin + 1;
    return !(cross_end || cross_diagonal);
  }
};

template <>
struct KeysSeen<MaskKind::kAny> {
  Span by_one, by_every;  // query

  __device__ __forceinline__ KeysSeen(const KernelMask<MaskKind::kAny>& mask, Span rows)
      : by_one(mask.keys_of(rows)),
        by_every{mask.keys_of(rows.end - 1).begin, mask.keys_of(rows.begin).end} {}
  __device__ __forceinline__ bool none(Span columns) const {
    return columns.end <= by_one.begin || columns.begin >= by_one.end;
  }
  __device__ __forceinline__ bool all(Span columns) const { return by_every.contains(columns); }
};

// Which queries see the keys of a warp: the same for all query tiles
template <MaskKind kMask>
struct QueriesSeeing {
  Span columns;
  int keys;

  __device__ __forceinline__ QueriesSeeing(const KernelMask<kMask>& mask, Span of_columns)
      : columns(of_columns), keys(mask.keys) {}
  __device__ __forceinline__ bool none(Span rows) const {
    return kMask == MaskKind::kCausal && rows.end <= columns.begin;
  }
  __device__ __forceinline__ bool all(Span rows) const {
    const bool cross_end = columns.end > keys,
               cross_diagonal = kMask == MaskKind::kCausal && rows.begin < columns.end - 1;
    return !(cross_end || cross_diagonal);
  }
};

template <>
struct QueriesSeeing<MaskKind::kAny> {
  Span one, every;  // key of the warp

  __device__ __forceinline__ QueriesSeeing(const KernelMask<MaskKind::kAny>& mask, Span columns)
      : one(mask.queries_of(columns)),
        every{mask.queries_of(columns.end - 1).begin, mask.queries_of(columns.begin).end} {}
  __device__ __forceinline__ bool none(Span rows) const {
    return rows.end <= one.begin || rows.begin >= one.end;
  }
  __device__ __forceinline__ bool all(Span rows) const { return every.contains(rows); }
};

// The key blocks that add to dQ of a query tile, from `last` down to `first`, and the rows of dS^T that
// block `key_block` has for it: those of warps with a key that the tile sees
template <class Tile, MaskKind kMask>
struct TileAdders {
  int first, last;
  Span rows;

  __device__ __forceinline__ TileAdders(const KernelMask<kMask>& mask, int first_q, int key_block,
                                        int key_blocks) {
    constexpr int kBlockK = Tile::kBlockK, kKeys = Tile::kKeysPerWarp;
    const int end_q = first_q + Tile::kBlockQ, first_k = key_block * kBlockK;
    if constexpr (kMask == MaskKind::kAny) {
      const Span seen = mask.keys_of(Span{first_q, end_q});
      first = seen.begin / kBlockK, last = (seen.end - 1) / kBlockK;
      rows = {(max(seen.begin, first_k) - first_k) / kKeys * kKeys,
              (min(seen.end - first_k, kBlockK) + kKeys - 1) / kKeys * kKeys};
    } else {
      constexpr bool kCausal = kMask == MaskKind::kCausal;
      const int seen_blocks = kCausal ? (end_q + kBlockK - 1) / kBlockK : key_blocks;
      first = 0, last = min(key_blocks, seen_blocks) - 1;
      rows = {0, kCausal ? min(kBlockK, end_q - first_k) : kBlockK};
    }
  }
};

}  // namespace tessera::attention::sm80
