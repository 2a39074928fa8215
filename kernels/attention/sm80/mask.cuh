// The masks that these kernels are compiled for, and what a CTA and a warp ask them.
//
// Full and causal masks of as many keys as queries have kernels of their own, in which the answers are
// constants and compares; kAny is every mask of kernels/attention/mask.h. There, rows and columns given here
// may reach past the end.
//
// CTAs that walk over queries and CTAs, or warps, that walk over keys agree on which tiles meet: those where
// keys_of(the rows of a tile of queries) and the columns have a key in common. That is where queries_of(the
// columns) and the rows have a query in common, but for dealt queries: between two of a tile there may be
// tokens that others have, and keys that none of the tile sees. So there the columns look for the tiles.
#pragma once

#include <type_traits>

#include "kernels/attention/blocks.h"
#include "kernels/attention/common/score.cuh"
#include "kernels/attention/sm80/fragment.cuh"

namespace tessera::attention::sm80 {

enum class MaskKind {
  kFull,
  kCausal,
  kAny,
  kListed  // the same with sparse blocks, kernels/attention/blocks.h: of its tiles those that lists have
};
template <MaskKind kMask>
inline constexpr bool kIsAny = kMask == MaskKind::kAny || kMask == MaskKind::kListed;

// Tiles of `size` that a span touches; full and causal masks show every query a key.
template <MaskKind kMask>
__device__ __forceinline__ Span tiles_of(Span span, int size) {
  if (kIsAny<kMask> && span.empty()) return {0, 0};
  return {span.begin / size, (span.end + size - 1) / size};
}

inline constexpr int kNever = 0x7fffffff;

// The query tiles that see a key of a block, of a.query_blocks in a head
template <MaskKind kMask>
struct QueryTiles {
  int begin;
  const int& end;  // of all: a parameter of the kernel, which takes no register

  __device__ __forceinline__ bool empty() const { return false; }
  __device__ __forceinline__ int behind() const { return 0; }  // of the tiles of a head, those after `end`
};
template <>
struct QueryTiles<MaskKind::kAny> {
  int begin, end, all;

  __device__ __forceinline__ bool empty() const { return begin == end; }
  __device__ __forceinline__ int behind() const { return all - end; }
};

// The places of a list that kernels walk in place of tiles: those of blocks and of tiles of the mask
template <>
struct QueryTiles<MaskKind::kListed> {
  TileList list;
  int first, before;  // place 0 is this of the list; tiles of blocks before the first query
  int begin, end, all;

  __device__ __forceinline__ bool empty() const { return end <= 0; }
  __device__ __forceinline__ int behind() const { return all - end; }
  __device__ __forceinline__ int operator[](int place) const { return list[first + place] - before; }
};

// The tile at a place
template <MaskKind kMask>
__device__ __forceinline__ int tile_at(const QueryTiles<kMask>& tiles, int place) {
  if constexpr (kMask == MaskKind::kListed) return tiles[place];
  return place;
}

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
  __device__ __forceinline__ int token_of(int query) const { return query; }
  // Padded queries count as seeing a key; their probabilities are 0.
  __device__ __forceinline__ Span queries_of(int key) const {
    return {key >= keys ? kNever : kCausal ? key : 0, kNever};
  }
  template <int kBlockQ>
  __device__ __forceinline__ QueryTiles<kMask> query_tiles_of(Span columns, const int& all) const {
    return {kCausal ? columns.begin / kBlockQ : 0, all};
  }
};

template <MaskKind kMask>
requires(kIsAny<kMask>) struct KernelMask<kMask> : Mask {
  __device__ __forceinline__ explicit KernelMask(const Mask& of_sequence) : Mask(of_sequence) {}
  __device__ __forceinline__ KernelMask(const Mask& mask, int /*tokens*/, int batch)
      : Mask(mask.of_sequence(batch)) {}
  __device__ __forceinline__ Span keys_of(int query) const { return Mask::keys_of(min(query, queries - 1)); }
  __device__ __forceinline__ Span keys_of(Span rows) const {
    const Span inside = {rows.begin, min(rows.end, queries)};
    return inside.empty() ? Span{0, 0} : Mask::keys_of(inside);
  }
  __device__ __forceinline__ int token_of(int query) const { return Mask::token_of(min(query, queries - 1)); }
  __device__ __forceinline__ Span queries_of(int key) const {
    return key < keys ? Mask::queries_of(key) : Span{kNever, kNever};
  }
  __device__ __forceinline__ Span queries_of(Span columns) const {
    const Span inside = {columns.begin, min(columns.end, keys)};
    return inside.empty() ? Span{0, 0} : Mask::queries_of(inside);
  }
  // Those of the tiles of kBlockQ queries that meet the columns
  template <int kBlockQ>
  __device__ __forceinline__ Span queries_meeting(Span columns) const {
    if (seen_by == nullptr) return queries_of(columns);
    const int tiles = (queries + kBlockQ - 1) / kBlockQ;
    const auto first = [&](const auto& reached) {  // neither end of keys_of() falls
      return kBlockQ * first_where(tiles, [&](int tile) {
               return reached(keys_of(Span{tile * kBlockQ, (tile + 1) * kBlockQ}));
             });
    };
    return {first([&](Span seen) { return seen.end > columns.begin; }),
            first([&](Span seen) { return seen.begin >= columns.end; })};
  }
  template <int kBlockQ>
  __device__ __forceinline__ QueryTiles<MaskKind::kAny> query_tiles_of(Span columns, const int& all) const {
    const Span tiles = queries_meeting<kBlockQ>(columns).tiles(kBlockQ);
    return {tiles.begin, tiles.end, all};
  }
};

// Beside the arguments of a kernel: its lists
template <class Args>
struct WithBlocks : Args {
  Blocks blocks;
  int offset;  // of the queries among the keys

  template <int kBlockK>
  __device__ __forceinline__ TileList keys_of(int list, int query) const {
    return {blocks.keys_of(list, (query + offset) / blocks.size), blocks.shift_of(kBlockK)};
  }
  // The query tiles that see a key of `columns`, which are of one block
  template <int kBlockQ>
  __device__ __forceinline__ QueryTiles<MaskKind::kListed> queries_of(
      int list, Span columns, const KernelMask<MaskKind::kListed>& mask, int all) const {
    const TileList tiles{blocks.queries_of(list, columns.begin / blocks.size), blocks.shift_of(kBlockQ)};
    const Span seeing = mask.queries_of(columns).tiles(kBlockQ);
    const int before = offset / kBlockQ, first = tiles.place_from(seeing.begin + before);
    return {tiles, first, before, 0, tiles.place_from(seeing.end + before) - first, all};
  }
};
template <class Args, MaskKind kMask>
using ArgsOf = std::conditional_t<kMask == MaskKind::kListed, WithBlocks<Args>, Args>;
template <MaskKind kMask, class Args>
ArgsOf<Args, kMask> with_blocks(const Args& args, const AttnProblem& p) {
  if constexpr (kMask == MaskKind::kListed)
    return {args, blocks_of(p), static_cast<int>(p.mask.offset)};
  else
    return args;
}

// Two spans of a warp, of kernels for any mask: what one of its rows or keys sees, and what all of them see.
// They lie in shared memory, since registers are short.
struct WarpSpans {
  static constexpr int kBytes = 16;  // a warp
  uint32_t at;

  __device__ __forceinline__ void set(Span some, Span every) const {
    if (threadIdx.x % 32 == 0) {
      ptx::store_shared(at, some.begin), ptx::store_shared(at + 4, some.end);
      ptx::store_shared(at + 8, every.begin), ptx::store_shared(at + 12, every.end);
    }
    __syncwarp();
  }
  __device__ __forceinline__ bool meet(Span other) const {
    const int2 some = ptx::load_shared_int2(at);
    return other.begin < some.y && other.end > some.x;
  }
  __device__ __forceinline__ bool hold(Span other) const {
    const int2 every = ptx::load_shared_int2(at + 8);
    return every.x <= other.begin && other.end <= every.y;
  }
};

// Which keys the kRows queries of a warp see: the same for all key tiles
template <MaskKind kMask, int kRows>
struct KeysSeen {
  int first_row, keys;

  __device__ __forceinline__ KeysSeen(const KernelMask<kMask>& mask, int of_row, WarpSpans /*spans*/)
      : first_row(of_row), keys(mask.keys) {}
  __device__ __forceinline__ bool none(Span columns) const {
    return kMask == MaskKind::kCausal && columns.begin >= first_row + kRows;
  }
  __device__ __forceinline__ bool all(Span columns) const {
    const bool cross_end = columns.end > keys,
               cross_diagonal = kMask == MaskKind::kCausal && columns.end > first_row + 1;
    return !(cross_end || cross_diagonal);
  }
};

template <MaskKind kMask, int kRows>
requires(kIsAny<kMask>) struct KeysSeen<kMask, kRows> {
  WarpSpans spans;  // seen by one query, by all

  __device__ __forceinline__ KeysSeen(const KernelMask<kMask>& mask, int row, WarpSpans its_spans)
      : spans(its_spans) {
    spans.set(mask.keys_of(Span{row, row + kRows}),
              {mask.keys_of(row + kRows - 1).begin, mask.keys_of(row).end});
  }
  __device__ __forceinline__ bool none(Span columns) const { return !spans.meet(columns); }
  __device__ __forceinline__ bool all(Span columns) const { return spans.hold(columns); }
};

// Which queries see the kKeys keys of a warp, asked for tiles of kBlockQ: the same for all query tiles
template <MaskKind kMask, int kKeys, int kBlockQ>
struct QueriesSeeing {
  int first_key, keys;

  __device__ __forceinline__ QueriesSeeing(const KernelMask<kMask>& mask, int of_key, WarpSpans /*spans*/)
      : first_key(of_key), keys(mask.keys) {}
  __device__ __forceinline__ bool none(Span rows) const {
    return kMask == MaskKind::kCausal && rows.end <= first_key;
  }
  __device__ __forceinline__ bool all(Span rows) const {
    return !(first_key + kKeys > keys || (kMask == MaskKind::kCausal && rows.begin < first_key + kKeys - 1));
  }
};

template <MaskKind kMask, int kKeys, int kBlockQ>
requires(kIsAny<kMask>) struct QueriesSeeing<kMask, kKeys, kBlockQ> {
  WarpSpans spans;  // seeing one key, all

  __device__ __forceinline__ QueriesSeeing(const KernelMask<kMask>& mask, int key, WarpSpans its_spans)
      : spans(its_spans) {
    spans.set(mask.template queries_meeting<kBlockQ>(Span{key, key + kKeys}),
              {mask.queries_of(key + kKeys - 1).begin, mask.queries_of(key).end});
  }
  __device__ __forceinline__ bool none(Span rows) const { return !spans.meet(rows); }
  __device__ __forceinline__ bool all(Span rows) const { return spans.hold(rows); }
};

// Scores of keys that a query does not see become -inf. Rows are queries and columns keys; with kTransposed
// the other way round. Element (0, 0) of the warp's tile is at `row` and `column`.
template <bool kTransposed, MaskKind kMask, int kM, int kN>
__device__ __forceinline__ void hide_unseen(Accumulator<kM, kN>& s, int row, int column,
                                            const KernelMask<kMask>& mask) {
  // Full and causal masks: no query's keys begin behind the first, no key's queries end before the last.
  constexpr bool kBegins = kTransposed || kIsAny<kMask>, kEnds = !kTransposed || kIsAny<kMask>;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < kM / 16; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // Columns are compile-time constants up to the lane's own offset, which goes into the limits.
      const int own = row + 16 * m + 8 * r + lane / 4;
      const Span seen = kTransposed ? mask.queries_of(own) : mask.keys_of(own);
      const int end = seen.end - column - lane % 4 * 2, begin = seen.begin - column - lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < kN / 8; ++n) {
        if constexpr (kEnds) {
          if (8 * n >= end) s.at[m][n][2 * r] = -INFINITY;
          if (8 * n + 1 >= end) s.at[m][n][2 * r + 1] = -INFINITY;
        }
        if constexpr (kBegins) {
          if (8 * n < begin) s.at[m][n][2 * r] = -INFINITY;
          if (8 * n + 1 < begin) s.at[m][n][2 * r + 1] = -INFINITY;
        }
      }
    }
  }
}

template <int kM, int kN>
__device__ __forceinline__ void cap_scores(Accumulator<kM, kN>& s, const ScoreCap& cap) {
#pragma unroll
  for (int m = 0; m < kM / 16; ++m) {
#pragma unroll
    for (int n = 0; n < kN / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s.at[m][n][e] = cap.fast(s.at[m][n][e]);
    }
  }
}

// Adds a bias to scores, of rows and columns as in hide_unseen().
template <bool kTransposed, MaskKind kMask, int kM, int kN>
__device__ __forceinline__ void add_bias(Accumulator<kM, kN>& s, int row, int column,
                                         const KernelMask<kMask>& mask, RawBias bias) {
  static_assert(kMask == MaskKind::kAny);
  const int lane = threadIdx.x % 32, last_query = mask.queries - 1;
  const auto position = [&](int query) { return mask.position_of(min(query, last_query)); };
#pragma unroll
  for (int m = 0; m < kM / 16; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int own = row + 16 * m + 8 * r + lane / 4, first = column + lane % 4 * 2;
      [[maybe_unused]] const int query = kTransposed ? 0 : position(own);
#pragma unroll
      for (int n = 0; n < kN / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int other = first + 8 * n + e;
          s.at[m][n][2 * r + e] += kTransposed ? bias.of(position(other), own) : bias.of(query, other);
        }
      }
    }
  }
}

// The key blocks that add to dQ of a query tile, from `last` down to `first`
template <class Tile, MaskKind kMask>
struct TileAdders {
  static constexpr bool kCausal = kMask == MaskKind::kCausal;
  static constexpr int kBlockQ = Tile::kBlockQ, kBlockK = Tile::kBlockK;
  int first, last;

  __device__ __forceinline__ TileAdders(const KernelMask<kMask>& /*mask*/, int first_q, int key_blocks)
      : first(0) {
    const int seen_blocks = kCausal ? (first_q + kBlockQ + kBlockK - 1) / kBlockK : key_blocks;
    last = min(key_blocks, seen_blocks) - 1;
  }
  // The rows of dS^T that the key block from `first_k` on has for the tile: those of warps with a key that
  // the tile sees
  __device__ __forceinline__ Span rows(int first_q, int first_k) const {
    return {0, kCausal ? min(kBlockK, first_q - first_k + kBlockQ) : kBlockK};
  }
};

template <class Tile>
struct TileAdders<Tile, MaskKind::kAny> {
  static constexpr int kBlockK = Tile::kBlockK, kKeys = Tile::kKeysPerWarp;
  Span seen;  // keys
  int first, last;

  __device__ __forceinline__ TileAdders(const KernelMask<MaskKind::kAny>& mask, int first_q,
                                        int /*key_blocks*/)
      : seen(mask.keys_of(Span{first_q, first_q + Tile::kBlockQ})),
        first(seen.begin / kBlockK),
        last((seen.end - 1) / kBlockK) {}
  __device__ __forceinline__ Span rows(int /*first_q*/, int first_k) const {
    return {max(seen.begin - first_k, 0) / kKeys * kKeys,
            (min(seen.end - first_k, kBlockK) + kKeys - 1) / kKeys * kKeys};
  }
};

// With sparse blocks: their places in the list of the query tile. `own` is that of this CTA's key block.
template <class Tile>
struct TileAdders<Tile, MaskKind::kListed> : TileAdders<Tile, MaskKind::kAny> {
  int own;

  template <class Args>
  __device__ __forceinline__ TileAdders(const KernelMask<MaskKind::kListed>& mask, int first_q, const Args& a,
                                        int list, int key_block)
      : TileAdders<Tile, MaskKind::kAny>(KernelMask<MaskKind::kAny>(mask), first_q, 0) {
    const TileList keys = a.template keys_of<Tile::kBlockK>(list, first_q);
    this->last = keys.place_from(this->last + 1) - 1, this->first = keys.place_from(this->first);
    own = keys.place_from(key_block);
  }
};

}  // namespace tessera::attention::sm80
