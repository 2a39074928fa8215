// Forward attention with mma.sync.
//
//   for a tile of kBlockQ queries of one batch and head, 32 a warp:            Q_i [Bq, D]
//     O = 0, m = -inf, sum = 0
//     for every key tile j, from the last that a query sees to the first:      K_j, V_j [Bk, D]
//       S = Q_i K_j^T, masked where a query does not see all of the tile       [Bq, Bk]
//       m, P, sum, O = online softmax of S (common/softmax.cuh)
//       O += P V_j                                                             [Bq, D]
//     O /= sum, LSE = (m + log2(sum)) ln(2)
//
// With dropout, P V is of what is kept of P, and O is multiplied by its scale.
// P stays in registers: an accumulator of S is, packed, the A operand of P V. Loads of K_{j-1}, V_{j-1} run
// during step j. CTAs with the most key tiles come first in the grid: the last to start are the shortest.
#pragma once

#include "kernels/attention/common/launch.cuh"
#include "kernels/attention/common/tensors.h"
#include "kernels/attention/sm80/dropout.cuh"
#include "kernels/attention/sm80/mask.cuh"
#include "kernels/attention/sm80/shape.h"
#include "kernels/attention/sm80/softmax.cuh"
#include "kernels/attention/sm80/tile_io.cuh"

namespace tessera::attention::sm80 {

struct ForwardArgs : ForwardTensors<bf16>, Sizes {
  float* lse;  // [B, H, N]
  int head_dim;
  DropoutMask dropout;
  Mask mask;     // of the first sequence; of kernels for any mask
  Alibi alibi;   // of rules with a bias
  ScoreCap cap;  // of rules with a cap
};

template <class Tile>
struct ForwardMemory {
  using Q = SharedTile<Tile::kBlockQ, Tile::kHeadDim>;
  using KV = SharedTile<Tile::kBlockK, Tile::kHeadDim>;
  static constexpr int kSlots = 2;  // of K, V
  static constexpr int kSpans = Q::kBytes + kSlots * 2 * KV::kBytes;
  static constexpr int kBytes = kSpans + Tile::kWarps * WarpSpans::kBytes;

  uint32_t base = shared_memory();

  __device__ __forceinline__ Q q() const { return {base}; }
  __device__ __forceinline__ KV k(int slot) const { return {base + Q::kBytes + slot * KV::kBytes}; }
  __device__ __forceinline__ KV v(int slot) const { return {k(kSlots + slot).base}; }
  __device__ __forceinline__ WarpSpans spans() const {  // of this thread's warp
    return {base + kSpans + threadIdx.x / 32 * WarpSpans::kBytes};
  }
};

// With sparse blocks: the list of the queries from `first` on, and of `tiles`, which become their places
template <int kBlockK, MaskKind kMask>
__device__ __forceinline__ TileList to_places(const ArgsOf<ForwardArgs, kMask>& a, int h, int first,
                                              Span& tiles) {
  TileList list{};
  if constexpr (kMask == MaskKind::kListed) {
    list = a.template keys_of<kBlockK>(a.blocks.list_of(h), first);
    tiles = {list.place_from(tiles.begin), list.place_from(tiles.end)};
  }
  return list;
}

template <int kTiles, class Score>
__device__ __forceinline__ void write_lse(const WarpSoftmax<kTiles, Score>& softmax, float* lse, int first_q,
                                          int tokens) {
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first_q + 16 * m + 8 * r + threadIdx.x % 32 / 4;
      if (threadIdx.x % 4 == 0 && row < tokens) lse[row] = softmax.rows[m].log_sum_exp(r);
    }
  }
}

template <class Tile, MaskKind kMask, bool kDropout>
__global__ void __launch_bounds__(Tile::kWarps * 32, Tile::kCtasPerSm)
    forward_kernel(const ArgsOf<ForwardArgs, kMask> a) {
  constexpr int kBlockQ = Tile::kBlockQ, kBlockK = Tile::kBlockK, kHeadDim = Tile::kHeadDim;
  constexpr int kThreads = Tile::kWarps * 32, kWarpQ = kBlockQ / Tile::kWarps;
  constexpr bool kWhole = Tile::kWhole;
  using KeyLoader = TileLoader<kThreads, kBlockK, kHeadDim, kWhole>;
  const ForwardMemory<Tile> memory;

  const int query_block = gridDim.x - 1 - blockIdx.x, h = blockIdx.y, b = blockIdx.z;

  const int warp_row = threadIdx.x / 32 * kWarpQ;
  const int first_q = query_block * kBlockQ + warp_row;  // the warp's rows: first_q .. first_q + kWarpQ - 1
  const KernelMask<kMask> mask(a.mask, a.tokens, b);
  Span key_tiles =
      tiles_of<kMask>(mask.keys_of(Span{query_block * kBlockQ, (query_block + 1) * kBlockQ}), kBlockK);
  [[maybe_unused]] const TileList list = to_places<kBlockK, kMask>(a, h, query_block * kBlockQ, key_tiles);
  const auto tile_of = [&](int place) {
    if constexpr (kMask == MaskKind::kListed) return list[place];
    return place;
  };

  const bool any_keys = !kIsAny<kMask> || !key_tiles.empty();

  if (any_keys) {
    TileLoader<kThreads, kBlockQ, kHeadDim, kWhole>(a.q.head_begin(b, h), a.q.row, query_block * kBlockQ,
                                                    a.head_dim)
        .start(memory.q(), a.tokens - query_block * kBlockQ);
  }
  // The last key tile may reach past the end, and so may the queries; all other key tiles are whole.
  const int last_k = (kMask == MaskKind::kListed && !any_keys ? 0 : tile_of(key_tiles.end - 1)) * kBlockK;
  const int kv_head = h / a.group;
  KeyLoader load_k(a.k.head_begin(b, kv_head), a.k.row, last_k, a.head_dim);
  KeyLoader load_v(a.v.head_begin(b, kv_head), a.v.row, last_k, a.head_dim);
  if (any_keys) {
    load_k.start(memory.k(0), mask.keys - last_k);
    load_v.start(memory.v(0), mask.keys - last_k);
    ptx::cp_async_commit();
  }

  Accumulator<kWarpQ, kHeadDim> o;
  o.clear();
  WarpSoftmax<kWarpQ / 16, typename Tile::Score> softmax(a.score);
  const KeysSeen<kMask, kWarpQ> seen(mask, first_q, memory.spans());

  int slot = 0;
  for (int place = key_tiles.end - 1; place >= key_tiles.begin; --place, slot ^= 1) {
    const int j = tile_of(place);
    ptx::cp_async_wait<0>();
    // K_j, V_j (and Q) have come for this thread: with the barrier, for all. It also tells that every warp is
    // done with step j + 1, whose slot the next load overwrites.
    __syncthreads();
    if (place > key_tiles.begin) {
      const int on = kMask == MaskKind::kListed ? tile_of(place - 1) - j : -1;
      load_k.move(on);
      load_v.move(on);
      load_k.start(memory.k(slot ^ 1));
      load_v.start(memory.v(slot ^ 1));
      ptx::cp_async_commit();
    }

    const int first_k = j * kBlockK;
    const Span columns = {first_k, first_k + kBlockK};
    if (seen.none(columns)) continue;

    Accumulator<kWarpQ, kBlockK> s;
    s.clear();
    multiply_rows_rows(s, memory.q(), warp_row, memory.k(slot), 0);
    if constexpr (Tile::Score::kBiased)
      add_bias<false>(s, first_q, first_k, KernelMask<kMask>(a.mask, a.tokens, b),
                      raw_bias<typename Tile::Score>(a.alibi, h, a.score.scale));
    if constexpr (Tile::Score::kCapped) cap_scores(s, a.cap);
    if (!seen.all(columns)) {
      // A mask of its own: kept from the beginning it would take registers that there are not.
      hide_unseen<false>(s, first_q, first_k, KernelMask<kMask>(a.mask, a.tokens, blockIdx.z));
    }
    softmax.update(s.at, o.at);
    if (kDropout) drop(s, a.dropout, KernelMask<kMask>(a.mask, a.tokens, b), b, h, first_q, first_k);
    const auto p = operand_a(s);
    multiply_registers_rows(o, p, memory.v(slot), 0);
  }

  softmax.finish(o.at);
  if (kDropout) o.scale(a.dropout.scale());
  write_lse(softmax, a.lse + static_cast<int64_t>(b * gridDim.y + h) * a.tokens, first_q, a.tokens);
  // The warp's own rows of Q are read by nobody else, and no longer by itself.
  store_rows<kWhole>(o, memory.q(), warp_row, a.out.head_begin(b, h), a.out.row, first_q, a.tokens,
                     a.head_dim);
}

template <class Tile, bool kDropout, MaskKind kMask>
AttnStatus launch_forward(const AttnForward& f, CUstream_st* stream) {
  const AttnProblem& p = f.problem;
  const auto args =
      with_blocks<kMask>(ForwardArgs{tensors_of<bf16>(f), sizes_of(p), f.lse, p.head_dim,
                                     DropoutMask(dropout_of(p)), mask_of(p), alibi_of(p), score_cap_of(p)},
                         p);
  static_assert(ForwardMemory<Tile>::kBytes <= kSharedEverywhere);
  const auto query_blocks = static_cast<unsigned>((p.tokens + Tile::kBlockQ - 1) / Tile::kBlockQ);
  const dim3 grid(query_blocks, static_cast<unsigned>(p.heads), static_cast<unsigned>(p.batch));
  return launch(forward_kernel<Tile, kMask, kDropout>, grid, Tile::kWarps * 32, ForwardMemory<Tile>::kBytes,
                stream, args);
}

// Full and causal masks
template <class Tile, bool kDropout = false>
AttnStatus launch_forward(const AttnForward& f, CUstream_st* stream) {
  return f.problem.mask.causal ? launch_forward<Tile, kDropout, MaskKind::kCausal>(f, stream)
                               : launch_forward<Tile, kDropout, MaskKind::kFull>(f, stream);
}

// Any mask, with dropout or without
template <class Tile>
AttnStatus launch_forward_masked(const AttnForward& f, CUstream_st* stream) {
  return f.problem.dropout.threshold > 0 ? launch_forward<Dropping<Tile>, true, MaskKind::kAny>(f, stream)
                                         : launch_forward<Masked<Tile>, false, MaskKind::kAny>(f, stream);
}

// With sparse blocks, without dropout
template <class Tile>
AttnStatus launch_forward_listed(const AttnForward& f, CUstream_st* stream) {
  return launch_forward<Listed<Tile>, false, MaskKind::kListed>(f, stream);
}

// The same with a cap of scores
template <class Tile>
AttnStatus launch_forward_cap(const AttnForward& f, CUstream_st* stream) {
  return f.problem.dropout.threshold > 0
             ? launch_forward<Capped<Dropping<Tile>>, true, MaskKind::kAny>(f, stream)
             : launch_forward<Capped<Masked<Tile>>, false, MaskKind::kAny>(f, stream);
}

// The same with ALiBi
template <class Tile>
AttnStatus launch_forward_alibi(const AttnForward& f, CUstream_st* stream) {
  return f.problem.dropout.threshold > 0
             ? launch_forward<Biased<Dropping<Tile>>, true, MaskKind::kAny>(f, stream)
             : launch_forward<Biased<Masked<Tile>>, false, MaskKind::kAny>(f, stream);
}

}  // namespace tessera::attention::sm80
