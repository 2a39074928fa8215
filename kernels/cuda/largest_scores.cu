// The largest score of each head. In bf16 a forward of attention without its softmax and its values, by the
// tensor cores that every chip has (kernels/attention/sm80):
//
//   for a tile of kBlockQ queries of one batch and head, 32 a warp (16 of wide heads):   Q_i [Bq, D]
//     m = -inf                                                                           [Bq]
//     for every key tile j that a query sees:                                            K_j [Bk, D]
//       X = Q_i K_j^T, with ALiBi + bias / scale, -inf where a query does not see a key  [Bq, Bk]
//       m = max(m, rowmax(X))
//     largest[h] = max(largest[h], the score of max(m))         by atomics, whose order does not matter
//
// Scale and cap rise with X, so that the largest X has the largest score. One kernel serves every mask: a
// warp knows which tiles it has to mask, and with sparse blocks the places of a list are walked in place of
// tiles. The load of the next tile of keys runs during a step. Heads in fp32, of a width or at an address
// that is no multiple of 16 bytes, or wider than 256, are in attention_sample.cu.
#include "kernels/attention/common/launch.cuh"
#include "kernels/attention/sm80/mask.cuh"
#include "kernels/attention/sm80/shape.h"
#include "kernels/attention/sm80/tile_io.cuh"
#include "kernels/base/ordered_float.h"
#include "kernels/cuda/attention_sample.h"
#include "kernels/cuda/attention_status.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/reduce.cuh"

namespace tessera {
namespace {

using namespace attention;
using namespace attention::sm80;

constexpr int kTileWarps = 4, kTileThreads = 32 * kTileWarps;

template <int kWidth>
struct ScoreTile {
  static constexpr int kHeadDim = kWidth;
  static constexpr int kBlockQ = kWidth <= 128 ? 128 : 64;
  static constexpr int kBlockK = kWidth == 64 ? 128 : kWidth == 128 ? 64 : 32;
};

struct TileArgs {
  View<const bf16> q, k;
  int group, head_dim;
  Mask mask;  // of the first sequence
  Blocks blocks;
  Alibi alibi;
  float scale, cap;
  uint32_t* largest;  // [H]
};

template <class Tile>
struct TileMemory {
  using Q = SharedTile<Tile::kBlockQ, Tile::kHeadDim>;
  using K = SharedTile<Tile::kBlockK, Tile::kHeadDim>;
  static constexpr int kSpans = Q::kBytes + 2 * K::kBytes;
  static constexpr int kBytes = kSpans + kTileWarps * WarpSpans::kBytes;
  static_assert(kBytes <= kSharedEverywhere);

  uint32_t base = shared_memory();

  __device__ __forceinline__ Q q() const { return {base}; }
  __device__ __forceinline__ K k(int slot) const { return {base + Q::kBytes + slot * K::kBytes}; }
  __device__ __forceinline__ WarpSpans spans() const {
    return {base + kSpans + threadIdx.x / 32 * WarpSpans::kBytes};
  }
};

// The tiles of keys that a CTA walks, by their places
struct KeyTiles {
  Span places;
  bool listed;
  TileList list;

  __device__ __forceinline__ KeyTiles(const TileArgs& a, Span tiles, int h, int first_query, int block_k)
      : places(tiles), listed(static_cast<bool>(a.blocks)), list{} {
    if (!listed) return;
    const int block = (first_query + a.mask.offset) / a.blocks.size;
    list = {a.blocks.keys_of(a.blocks.list_of(h), block), a.blocks.shift_of(block_k)};
    places = {list.place_from(tiles.begin), list.place_from(tiles.end)};
  }
  __device__ __forceinline__ int operator[](int place) const { return listed ? list[place] : place; }
};

template <int kTiles>
__device__ __forceinline__ void raise(float (&most)[2], const float (&x)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) most[e / 2] = fmaxf(most[e / 2], x[n][e]);
  }
}

template <class Tile>
__global__ void __launch_bounds__(kTileThreads) largest_scores_kernel(const __grid_constant__ TileArgs a) {
  constexpr int kBlockQ = Tile::kBlockQ, kBlockK = Tile::kBlockK, kHeadDim = Tile::kHeadDim;
  constexpr int kWarpQ = kBlockQ / kTileWarps;
  const TileMemory<Tile> memory;
  const int first_row = blockIdx.x * kBlockQ, h = blockIdx.y, b = blockIdx.z;
  const int warp_row = threadIdx.x / 32 * kWarpQ, first_q = first_row + warp_row;
  const KernelMask<MaskKind::kAny> mask(a.mask, 0, b);
  const KeyTiles tiles(a,
                       tiles_of<MaskKind::kAny>(mask.keys_of(Span{first_row, first_row + kBlockQ}), kBlockK),
                       h, first_row, kBlockK);
  if (tiles.places.empty()) return;

  TileLoader<kTileThreads, kBlockQ, kHeadDim, false>(a.q.head_begin(b, h), a.q.row, first_row, a.head_dim)
      .start(memory.q(), mask.queries - first_row);
  const bf16* keys = a.k.head_begin(b, h / a.group);
  const auto load = [&](int place, int slot) {
    const int first_k = tiles[place] * kBlockK;
    TileLoader<kTileThreads, kBlockK, kHeadDim, false>(keys, a.k.row, first_k, a.head_dim)
        .start(memory.k(slot), mask.keys - first_k);
    ptx::cp_async_commit();
  };
  load(tiles.places.begin, 0);

  const KeysSeen<MaskKind::kAny, kWarpQ> seen(mask, first_q, memory.spans());
  const RawBias bias{a.alibi ? a.alibi.slope(h) / a.scale : 0};
  float most[kWarpQ / 16][2];
#pragma unroll
  for (int m = 0; m < kWarpQ / 16; ++m) most[m][0] = most[m][1] = -INFINITY;
  int slot = 0;
  for (int place = tiles.places.begin; place < tiles.places.end; ++place, slot ^= 1) {
    ptx::cp_async_wait<0>();
    // K_j (and Q) have come for this thread: with the barrier, for all. It also tells that every warp is done
    // with the tile before, whose slot the next load overwrites.
    __syncthreads();
    if (place + 1 < tiles.places.end) load(place + 1, slot ^ 1);
    const int first_k = tiles[place] * kBlockK;
    const Span columns = {first_k, first_k + kBlockK};
    if (seen.none(columns)) continue;
    Accumulator<kWarpQ, kBlockK> x;
    x.clear();
    multiply_rows_rows(x, memory.q(), warp_row, memory.k(slot), 0);
    if (a.alibi) add_bias<false>(x, first_q, first_k, mask, bias);
    if (!seen.all(columns)) hide_unseen<false>(x, first_q, first_k, mask);
#pragma unroll
    for (int m = 0; m < kWarpQ / 16; ++m) raise(most[m], x.at[m]);
  }

  float largest = -INFINITY;  // rows past the end are zeros, which nobody asked for
#pragma unroll
  for (int m = 0; m < kWarpQ / 16; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (first_q + 16 * m + 8 * r + static_cast<int>(threadIdx.x) % 32 / 4 < mask.queries)
        largest = fmaxf(largest, most[m][r]);
  }
  largest = warp_max(largest);
  if (threadIdx.x % 32 > 0 || largest == -INFINITY) return;
  float score = ScaledScore::value({.scale = a.scale}, largest);
  if (a.cap > 0) score = a.cap * tanhf(score / a.cap);
  atomicMax(a.largest + h, ordered_word(score));
}

template <int kWidth>
void launch_tiles(const TileArgs& args, const AttentionShape& s, CUstream_st* stream) {
  using Tile = ScoreTile<kWidth>;
  const dim3 grid(static_cast<unsigned>(cuda::divide_up(s.tokens, Tile::kBlockQ)),
                  static_cast<unsigned>(s.heads), static_cast<unsigned>(s.batch));
  const AttnStatus status =
      launch(largest_scores_kernel<Tile>, grid, kTileThreads, TileMemory<Tile>::kBytes, stream, args);
  check(status == ATTN_OK, "{}: {}", LargestScores::kName, cuda::failure_text(status));
}

// cp.async takes 16 bytes at a time.
bool is_aligned(const View<const bf16>& heads) {
  return reinterpret_cast<uintptr_t>(heads.data) % 16 == 0 && heads.row % 8 == 0 && heads.head % 8 == 0 &&
         heads.batch % 8 == 0;
}

}  // namespace

void CudaBackend::run_op(const LargestScores& a, const Launch& on) {
  const AttentionShape& s = a.plan.shape;
  const AttnProblem problem = attn_problem(a.plan);
  if (a.plan.dtype == DType::kBF16 && s.head_dim % 8 == 0 && s.head_dim <= 256) {
    const TileArgs args{.q = heads_of<const bf16>(a.q),
                        .k = heads_of<const bf16>(a.k),
                        .group = static_cast<int>(s.group()),
                        .head_dim = static_cast<int>(s.head_dim),
                        .mask = mask_of(a.plan, a.tables),
                        .blocks = blocks_of(a.plan, a.tables),
                        .alibi = alibi_of(problem),
                        .scale = a.plan.scale,
                        .cap = s.scores.cap,
                        .largest = a.largest.as<uint32_t>()};
    if (is_aligned(args.q) && is_aligned(args.k)) {
      switch (tile_width(args.head_dim)) {
        case 64:
          return launch_tiles<64>(args, s, on.stream);
        case 128:
          return launch_tiles<128>(args, s, on.stream);
        default:
          return launch_tiles<256>(args, s, on.stream);
      }
    }
  }
  largest_scores_of_rows(a, on.stream);
}

}  // namespace tessera
