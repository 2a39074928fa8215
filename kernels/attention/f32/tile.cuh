// What the fp32 kernels share: tiles in shared memory, and the two products that attention is made of.
//
// 256 threads stand as 16 x 16: thread (ty, tx) holds elements (ty + 16 i, tx + 16 j) of a
// result. The 16 threads of a row of results are half a warp, so what they exchange through a row
// of shared memory needs a warp barrier only.
#pragma once

#include "kernels/attention/blocks.h"
#include "kernels/attention/common/launch.cuh"
#include "kernels/attention/common/tensors.h"
#include "kernels/attention/f32/shape.h"
#include "kernels/attention/mask.h"

namespace tessera::attention::f32 {

inline constexpr int kThreads = 256, kSide = 16;

template <int kHeadDim>
inline constexpr int kTile = tile_rows(kHeadDim);

// Rows are 16 bytes longer than they need be: float4 reads of neighbouring rows fall into different banks.
template <int kRows_, int kCols_>
struct SharedTile {
  static constexpr int kRows = kRows_, kCols = kCols_, kStride = kCols + 4, kFloats = kRows * kStride;
  float* data;

  __device__ float& at(int row, int col) const { return data[row * kStride + col]; }
  __device__ float4& four(int row, int col) const {
    return *reinterpret_cast<float4*>(data + row * kStride + col);
  }
};

// To a tile: rows first .. of a [rows, cols] matrix, and zeros past its ends. `cols` is a multiple of 4;
// kWhole: it is kCols
template <bool kWhole, int kRows, int kCols>
__device__ __forceinline__ void load(SharedTile<kRows, kCols> tile, const float* from, int64_t stride,
                                     int first, int rows, int cols) {
  for (int i = threadIdx.x; i < kRows * kCols / 4; i += kThreads) {
    const int row = i / (kCols / 4), col = i % (kCols / 4) * 4;
    tile.four(row, col) = first + row < rows && (kWhole || col < cols)
                              ? *reinterpret_cast<const float4*>(from + (first + row) * stride + col)
                              : float4{0, 0, 0, 0};
  }
}

// Tiles of kTile rows that hold so many
template <int kHeadDim>
int tiles_of(int rows) {
  return Span{0, rows}.tiles(kTile<kHeadDim>).end;
}

// Rows of a tile that begins with row `first`, of `rows` in all
template <int kT>
__device__ __forceinline__ Span tile_span(int first, int rows) {
  return {first, min(first + kT, rows)};
}

// Which tiles of a span a CTA walks: all of them, or those of the blocks that a list has.
struct Walk {
  static constexpr int kNoTile = 0x7fffffff;
  bool listed = false;
  TileList list = {};
  int before = 0;  // tiles of blocks before tile 0

  // The first of them from `tile` on; past all of them, kNoTile
  __device__ __forceinline__ int from(int tile) const {
    if (!listed) return tile;
    const int place = list.place_from(tile + before);
    return place == list.size() ? kNoTile : list[place] - before;
  }
};

// What a call may ask for beside its mask. A plain call asks for nothing, and its kernels do not read this.
struct Extras {
  bool drops, capped;
  DropoutMask dropout;
  Alibi alibi;
  ScoreCap cap;
  Blocks blocks;
  int offset;  // of the queries among the keys

  explicit Extras(const AttnProblem& p)
      : drops(p.dropout.threshold > 0),
        capped(p.score_cap > 0),
        dropout(dropout_of(p)),
        alibi(alibi_of(p)),
        cap(score_cap_of(p)),
        blocks(blocks_of(p)),
        offset(static_cast<int>(p.mask.offset)) {}

  bool any() const { return drops || capped || alibi || blocks; }

  template <int kT>
  __device__ __forceinline__ Walk keys_of(int head, int first_query) const {
    if (!blocks) return {};
    return {
        true,
        {blocks.keys_of(blocks.list_of(head), (first_query + offset) / blocks.size), blocks.shift_of(kT)}};
  }
  template <int kT>
  __device__ __forceinline__ Walk queries_of(int kv_head, int first_key) const {
    if (!blocks) return {};
    return {true,
            {blocks.queries_of(kv_head / blocks.kv_heads, first_key / blocks.size), blocks.shift_of(kT)},
            offset / kT};
  }
};

// The keys that a query of a tile sees; none past the last query. `whole`: every query of the tile sees all
// of `columns`, the keys of the tile, and the mask need not be asked.
__device__ __forceinline__ Span seen_by(int query, const Mask& mask, bool whole, Span columns) {
  if (query >= mask.queries) return {0, 0};
  return whole ? columns : mask.keys_of(query);
}

struct Place {
  int ty = threadIdx.x / kSide, tx = threadIdx.x % kSide;
};

// The scores of a query and of keys first_k + tx + kSide c
template <int kJ>
__device__ __forceinline__ void add_bias(float (&scores)[kJ], RawBias bias, int query, int first_k,
                                         const Mask& mask) {
  const int position = mask.position_of(min(query, mask.queries - 1));
#pragma unroll
  for (int c = 0; c < kJ; ++c) scores[c] += bias.of(position, first_k + Place().tx + kSide * c);
}

// launch.template operator()<D, kPlain>() with D the width of the tiles. Plain calls of the usual head dims
// have kernels that ask neither for extras nor where a head ends. All others share one for each width.
template <class Launch>
AttnStatus with_head_dim(int head_dim, const Extras& extras, const Launch& launch) {
  switch (extras.any() ? 0 : head_dim) {
    case 16:
      return launch.template operator()<16, true>();
    case 32:
      return launch.template operator()<32, true>();
    case 64:
      return launch.template operator()<64, true>();
    case 128:
      return launch.template operator()<128, true>();
  }
  if (head_dim <= 64) return launch.template operator()<64, false>();
  if (head_dim <= 128) return launch.template operator()<128, false>();
  return launch.template operator()<256, false>();
}

template <int kM, int kN>
struct Accumulator {  // a thread's part of an M x N result
  static constexpr int kI = kM / kSide, kJ = kN / kSide;
  float at[kI][kJ] = {};
};

// Which scores of a tile, queries by keys, dropout keeps; in shared memory. Each thread draws at most a unit.
template <int kT>
struct KeptScores {
  static constexpr int kUnits = kT / Dropout::kUnit;  // of a query
  static_assert(Dropout::kUnit == kSide);             // so a unit's column is a thread's place
  static_assert(kT * kUnits <= kThreads);
  uint16_t of_unit[kT][kUnits];

  // The token that the query of this thread is
  static __device__ int token(const Mask& mask, int first_query) {
    return mask.token_of(min(first_query + static_cast<int>(threadIdx.x) / kUnits, mask.queries - 1));
  }
  __device__ void draw(const DropoutMask& dropout, int b, int h, int token, int first_key) {
    const int query = threadIdx.x / kUnits, unit = threadIdx.x % kUnits;
    if (query >= kT) return;
    const Philox::Words words = dropout.draw(b, h, token, first_key / Dropout::kUnit + unit);
    of_unit[query][unit] = static_cast<uint16_t>(dropout.kept(words, words));
  }
  __device__ bool at(int query, int unit, int column) const { return of_unit[query][unit] >> column & 1; }
};

// c += A B^T
template <int kM, int kN, int kK>
__device__ __forceinline__ void multiply_rows_rows(Accumulator<kM, kN>& c, SharedTile<kM, kK> a,
                                                   SharedTile<kN, kK> b) {
  using C = Accumulator<kM, kN>;
  const Place at;
#pragma unroll 4
  for (int k = 0; k < kK; k += 4) {
    float4 fa[C::kI], fb[C::kJ];
#pragma unroll
    for (int i = 0; i < C::kI; ++i) fa[i] = a.four(at.ty + kSide * i, k);
#pragma unroll
    for (int j = 0; j < C::kJ; ++j) fb[j] = b.four(at.tx + kSide * j, k);
#pragma unroll
    for (int i = 0; i < C::kI; ++i) {
#pragma unroll
      for (int j = 0; j < C::kJ; ++j) {
        c.at[i][j] = fmaf(fa[i].x, fb[j].x, c.at[i][j]);
        c.at[i][j] = fmaf(fa[i].y, fb[j].y, c.at[i][j]);
        c.at[i][j] = fmaf(fa[i].z, fb[j].z, c.at[i][j]);
        c.at[i][j] = fmaf(fa[i].w, fb[j].w, c.at[i][j]);
      }
    }
  }
}

// c += A B
template <int kM, int kN, int kK>
__device__ __forceinline__ void multiply_rows_cols(Accumulator<kM, kN>& c, SharedTile<kM, kK> a,
                                                   SharedTile<kK, kN> b) {
  using C = Accumulator<kM, kN>;
  const Place at;
#pragma unroll 4
  for (int k = 0; k < kK; ++k) {
    float fa[C::kI], fb[C::kJ];
#pragma unroll
    for (int i = 0; i < C::kI; ++i) fa[i] = a.at(at.ty + kSide * i, k);
#pragma unroll
    for (int j = 0; j < C::kJ; ++j) fb[j] = b.at(k, at.tx + kSide * j);
#pragma unroll
    for (int i = 0; i < C::kI; ++i) {
#pragma unroll
      for (int j = 0; j < C::kJ; ++j) c.at[i][j] = fmaf(fa[i], fb[j], c.at[i][j]);
    }
  }
}

// A thread's part of rows first .. of a [rows, cols] matrix; kWhole: cols = kN
template <bool kWhole, int kM, int kN>
__device__ __forceinline__ void store(const Accumulator<kM, kN>& c, float* to, int64_t stride, int first,
                                      int rows, int cols, float factor = 1) {
  const Place at;
#pragma unroll
  for (int i = 0; i < kM / kSide; ++i) {
    const int row = first + at.ty + kSide * i;
    if (row >= rows) continue;
#pragma unroll
    for (int j = 0; j < kN / kSide; ++j) {
      if (!kWhole && at.tx + kSide * j >= cols) break;
      to[row * stride + at.tx + kSide * j] = c.at[i][j] * factor;
    }
  }
}

}  // namespace tessera::attention::f32
