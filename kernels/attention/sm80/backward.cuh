// Backward attention with mma.sync: the main kernel.
//
//   for a block of kBlockK keys of one batch and head, kKeysPerWarp a warp:   K_j, V_j [Bk, D]
//     dK = dV = 0
//     for every query head of the group that shares K and V (one, unless queries are grouped),
//     for every query tile i that sees a key of the block, upwards:           Q_i, dO_i [Bq, D], L_i [Bq]
//       P^T  = 2^(c K_j Q_i^T - L_i), 0 where masked                          [Bk, Bq]
//       dS^T = P^T o (V_j dO_i^T - delta_i)                                   [Bk, Bq]
//       dV  += P^T dO_i,  dK += dS^T Q_i                                      [Bk, D]
//       dQ_i += dS K_j, a sum over CTAs: query_gradient.cuh                   [Bq, D]
//     dK *= scale (and so is dQ, where it is finished)
//   where c = scale log2(e), L = LSE log2(e), and delta = rowsum(dO o O) = rowsum(P o dP).
//
// With the scores transposed, P^T and dS^T are, packed, the A operands of dV and dK: they stay in registers.
// Only dS passes through shared memory, since dQ sums over all keys of the block. Step i loads tile i + 1,
// which may be the next head's first.
//
// With dropout, dV is of what is kept of P^T, and V_j dO_i^T is 0 where P^T is dropped; both times its scale.
//
// D = 256: kSplitD = 2 warps share their keys. Both compute P^T and dS^T, seven products instead of five, and
// each has half the columns of dV and dK.
#pragma once

#include "kernels/attention/sm80/backward_args.cuh"
#include "kernels/attention/sm80/dropout.cuh"
#include "kernels/attention/sm80/key_block.cuh"
#include "kernels/attention/sm80/mask.cuh"
#include "kernels/attention/sm80/query_gradient.cuh"
#include "kernels/attention/sm80/shape.h"
#include "kernels/attention/sm80/tile_io.cuh"

namespace tessera::attention::sm80 {

template <class Tile>
struct BackwardMemory {
  static constexpr int kSlots = 2;  // of everything that belongs to a query tile
  using Keys = SharedTile<Tile::kBlockK, Tile::kHeadDim>;
  using Queries = SharedTile<Tile::kBlockQ, Tile::kHeadDim>;
  using Scores = SharedTile<Tile::kBlockK, 64>;  // dS^T; kBlockQ of the 64 columns are used
  static constexpr int kRowsBytes = Tile::kBlockQ * 4;
  static constexpr int kTicket =
      2 * Keys::kBytes + kSlots * (2 * Queries::kBytes + Scores::kBytes + 2 * kRowsBytes);
  static constexpr int kSpans = kTicket + 16;
  static constexpr int kBytes = kSpans + Tile::kWarps * WarpSpans::kBytes;

  uint32_t base = shared_memory();

  __device__ __forceinline__ Keys k() const { return {base}; }
  __device__ __forceinline__ Keys v() const { return {base + Keys::kBytes}; }
  __device__ __forceinline__ Queries q(int slot) const {
    return {base + 2 * Keys::kBytes + slot * Queries::kBytes};
  }
  __device__ __forceinline__ Queries dout(int slot) const { return {q(kSlots + slot).base}; }
  __device__ __forceinline__ Scores ds(int slot) const {
    return {q(2 * kSlots).base + slot * Scores::kBytes};
  }
  __device__ __forceinline__ uint32_t log2_sum_exp(int slot) const {
    return ds(kSlots).base + slot * 2 * kRowsBytes;
  }
  __device__ __forceinline__ uint32_t delta(int slot) const { return log2_sum_exp(slot) + kRowsBytes; }
  __device__ __forceinline__ uint32_t ticket() const { return base + kTicket; }
  __device__ __forceinline__ WarpSpans spans() const {  // of this thread's warp
    return {base + kSpans + threadIdx.x / 32 * WarpSpans::kBytes};
  }
};

// What dropout keeps of a pass, kM keys x kN queries from (key, query) on; dq_tile is counted over all heads.
template <bool kDropout, int kM, int kN, MaskKind kMask>
__device__ __forceinline__ uint32_t kept_of(const BackwardArgs& a, const KernelMask<kMask>& mask, int b,
                                            int dq_tile, int query, int key) {
  if constexpr (kDropout) {
    const int h = dq_tile / a.query_blocks - b * a.heads;
    return kept_of_transposed<kM, kN>(a.dropout, mask, b, h, query, key);
  }
  return ~0u;
}

// Scores become probabilities, P = 2^(c s - L), and with them dP becomes dS = P (dP - delta). L and delta of
// the columns' queries are at these shared addresses. With dropout, what is dropped of P is then 0, and dP is
// `dropout_scale` of it, or 0; `kept` as of kept_of_transposed().
template <bool kDropout, class Score, int kM, int kN>
__device__ __forceinline__ void scores_to_gradients(Accumulator<kM, kN>& p, Accumulator<kM, kN>& ds,
                                                    Score score, uint32_t log2_sum_exp_at, uint32_t delta_at,
                                                    uint32_t kept, float dropout_scale,
                                                    [[maybe_unused]] const ScoreCap& cap) {
#pragma unroll
  for (int n = 0; n < kN / 8; ++n) {
    const uint32_t column = (8 * n + threadIdx.x % 4 * 2) * sizeof(float);
    const float2 log2_sum_exp = ptx::load_shared_float2(log2_sum_exp_at + column);
    const float2 delta = ptx::load_shared_float2(delta_at + column);
#pragma unroll
    for (int m = 0; m < kM / 16; ++m) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const bool odd = e % 2;
        float& x = p.at[m][n][e];
        [[maybe_unused]] float of_cap = 1;
        if constexpr (Score::kCapped) of_cap = cap.derivative(x);
        x = ptx::exp2(score.log2_above(x, odd ? log2_sum_exp.y : log2_sum_exp.x));
        float& gradient = ds.at[m][n][e];
        if (kDropout) {
          const bool is_kept = kept >> (4 * (m * (kN / 8) + n) + e) & 1;
          gradient = x * ((is_kept ? gradient * dropout_scale : 0) - (odd ? delta.y : delta.x));
          if (!is_kept) x = 0;
        } else {
          gradient = x * (gradient - (odd ? delta.y : delta.x));
        }
        if constexpr (Score::kCapped) gradient *= of_cap;
      }
    }
  }
}

// Loads query tiles with their statistics, tiles.begin to tiles.end of one query head of the group after the
// other.
template <class Tile, MaskKind kMask>
struct QueryLoader {
  static constexpr int kBlockQ = Tile::kBlockQ;
  static constexpr bool kListed = kMask == MaskKind::kListed;
  using Loader = TileLoader<Tile::kWarps * 32, kBlockQ, Tile::kHeadDim, Tile::kWhole>;

  const BackwardArgs& a;
  const QueryTiles<kMask> tiles;
  Loader q, dout;
  const float* statistics;
  int tile, heads_left;

  __device__ __forceinline__ QueryLoader(const BackwardArgs& args, const QueryTiles<kMask>& of_tiles, int b,
                                         int kv_head, int kv_head_index)
      : a(args),
        tiles(of_tiles),
        q(a.q.head_begin(b, kv_head * a.group), a.q.row, first_tile() * kBlockQ, a.head_dim),
        dout(a.dout.head_begin(b, kv_head * a.group), a.dout.row, first_tile() * kBlockQ, a.head_dim),
        // Threads 0 .. kBlockQ / 4 - 1 load L, as many more load
        // delta, which lies behind it in shared memory.
        statistics((threadIdx.x < kBlockQ / 4 ? a.log2_sum_exp : a.delta) + threadIdx.x % (kBlockQ / 4) * 4 +
                   static_cast<int64_t>(kv_head_index * a.group) * a.padded_tokens + first_tile() * kBlockQ),
        tile(tiles.begin),
        heads_left(kListed && tiles.empty() ? 0 : a.group) {}
  __device__ __forceinline__ int first_tile() const {
    if (kListed && tiles.empty()) return 0;
    return tile_at(tiles, tiles.begin);
  }

  // The next tile, if there is one: a group of copies
  __device__ __forceinline__ void start(const BackwardMemory<Tile>& memory, int slot) {
    if (heads_left > 0) {
      const int own = tile_at(tiles, tile);
      q.start(memory.q(slot), a.tokens - own * kBlockQ);
      dout.start(memory.dout(slot), a.tokens - own * kBlockQ);
      if (threadIdx.x < kBlockQ / 2)
        ptx::cp_async_16(memory.log2_sum_exp(slot) + threadIdx.x * 16, statistics);
      if constexpr (kListed) {
        const bool last = tile + 1 == tiles.end;
        tile = last ? 0 : tile + 1;
        const int on = tiles[tile] - own;
        q.move(on), dout.move(on);
        statistics += on * kBlockQ;
        if (last) {
          --heads_left;
          q.move_elements(a.q.head), dout.move_elements(a.dout.head);
          statistics += a.padded_tokens;
        }
      } else {
        q.move(1);
        dout.move(1);
        statistics += kBlockQ;
        if (++tile == tiles.end) next_head();
      }
    }
    ptx::cp_async_commit();
  }

 private:
  __device__ __forceinline__ void next_head() {  // whose statistics follow at once
    --heads_left;
    tile = tiles.begin;
    q.move(tiles.begin - tiles.end);
    q.move_elements(a.q.head);
    dout.move(tiles.begin - tiles.end);
    dout.move_elements(a.dout.head);
    statistics += (tiles.behind() + tiles.begin) * kBlockQ;
  }
};

template <class Tile>
__device__ __forceinline__ void take_ticket(const BackwardArgs& a, const BackwardMemory<Tile>& memory) {
  if (threadIdx.x == 0) ptx::store_shared(memory.ticket(), atomicAdd(a.counters, 1u));
  __syncthreads();  // else a thread could read its ticket before it is there
}

template <class Tile>
__device__ __forceinline__ void start_load_keys(const BackwardArgs& a, const BackwardMemory<Tile>& memory,
                                                int b, int kv_head, int key_block, int keys) {
  using Loader = TileLoader<Tile::kWarps * 32, Tile::kBlockK, Tile::kHeadDim, Tile::kWhole>;
  const int first = key_block * Tile::kBlockK;
  Loader(a.k.head_begin(b, kv_head), a.k.row, first, a.head_dim).start(memory.k(), keys - first);
  Loader(a.v.head_begin(b, kv_head), a.v.row, first, a.head_dim).start(memory.v(), keys - first);
}

// dK or dV of a warp's keys: its columns
template <class Tile>
using KeyGradient = Accumulator<Tile::kKeysPerWarp, Tile::kHeadDim / Tile::kSplitD>;

// After the last step: K is no longer read, so its tile can take dK. `part` tells the warp's columns.
template <bool kDropout, class Tile>
__device__ __forceinline__ void write_key_gradients(const BackwardArgs& a, const BackwardMemory<Tile>& memory,
                                                    const KeyBlock& block, int keys, int warp_row, int part,
                                                    KeyGradient<Tile>& dk, KeyGradient<Tile>& dv) {
  constexpr int kSplitD = Tile::kSplitD;
  dk.scale(Tile::Score::derivative(a.score()));
  if (kDropout) dv.scale(a.dropout.scale());
  const int first_row = block.index * Tile::kBlockK + warp_row, first_col = part * (Tile::kHeadDim / kSplitD);
  const int cols = a.head_dim - first_col;
  store_rows<Tile::kWhole>(dk, columns_of<kSplitD>(memory.k(), part), warp_row,
                           a.dk.head_begin(block.b, block.h) + first_col, a.dk.row, first_row, keys, cols);
  store_rows<Tile::kWhole>(dv, columns_of<kSplitD>(memory.v(), part), warp_row,
                           a.dv.head_begin(block.b, block.h) + first_col, a.dv.row, first_row, keys, cols);
}

// Our turn to add to a query tile has come when all key blocks from `top_block` down have added.
__device__ __forceinline__ void wait_turn(const uint32_t* adders, int key_block, int top_block) {
  if (threadIdx.x == 0) {
    while (ptx::load_acquire(adders) != top_block - key_block) {
    }
  }
}
// Passes on the turn at the tile of the step before; `adders` is this step's. By the last warp, since the
// first has waited for the turn: both cost a trip to L2.
template <class Tile, MaskKind kMask, class Block>
__device__ __forceinline__ void pass_turn(const BackwardArgs& a, uint32_t* adders, int dq_tile, int tile,
                                          const QueryTiles<kMask>& tiles, const Block& block) {
  if (threadIdx.x == Tile::kWarps * 32 - 1) {
    if constexpr (kMask == MaskKind::kListed) {  // `tile` is a place, and dq_tile counts them
      const int own = tiles[tile];
      if (tile > 0) {
        ptx::red_add_release(adders - own + tiles[tile - 1], 1);
      } else if (dq_tile >= (block().head_index * a.group + 1) * a.query_blocks) {
        ptx::red_add_release(adders - own - a.query_blocks + tiles[tiles.end - 1], 1);
      }
    } else if (tile > tiles.begin) {
      ptx::red_add_release(adders - 1, 1);
    } else if (dq_tile >= (block().head_index * a.group + 1) * a.query_blocks) {
      ptx::red_add_release(adders - 1 - tiles.begin - tiles.behind(), 1);  // the last tile of the head before
    }
  }
}

// At the last tile of all
template <class Tile, MaskKind kMask>
__device__ __forceinline__ void pass_last_turn(const BackwardArgs& a, const KeyBlock& done,
                                               const QueryTiles<kMask>& tiles) {
  if (threadIdx.x != Tile::kWarps * 32 - 1 || tiles.empty()) return;
  const int heads_done = (done.head_index + 1) * a.group;
  if constexpr (kMask == MaskKind::kListed) {
    ptx::red_add_release(a.counters + 1 + (heads_done - 1) * a.query_blocks + tiles[tiles.end - 1], 1);
    return;
  }
  ptx::red_add_release(a.counters + heads_done * a.query_blocks - tiles.behind(), 1);
}

template <class Tile, MaskKind kMask>
__device__ __forceinline__ TileAdders<Tile, kMask> adders_of(const ArgsOf<BackwardArgs, kMask>& a,
                                                             const KernelMask<kMask>& mask, int first_q,
                                                             [[maybe_unused]] int key_block,
                                                             [[maybe_unused]] int kv_head) {
  if constexpr (kMask == MaskKind::kListed) {
    return {mask, first_q, a, kv_head / a.blocks.kv_heads, key_block};
  } else {
    return {mask, first_q, a.key_blocks};
  }
}
// Where a key block is among them
template <class Tile, MaskKind kMask>
__device__ __forceinline__ int turn_of(const TileAdders<Tile, kMask>& adders, int key_block) {
  if constexpr (kMask == MaskKind::kListed) return adders.own;
  return key_block;
}

// The query tiles that see a key of a block
template <class Tile, MaskKind kMask>
__device__ __forceinline__ QueryTiles<kMask> query_tiles_of(const ArgsOf<BackwardArgs, kMask>& a,
                                                            const KernelMask<kMask>& mask, Span columns,
                                                            [[maybe_unused]] int kv_head) {
  if constexpr (kMask == MaskKind::kListed) {
    const int list = kv_head / a.blocks.kv_heads;
    return a.template queries_of<Tile::kBlockQ>(list, columns, mask, a.query_blocks);
  } else {
    return mask.template query_tiles_of<Tile::kBlockQ>(columns, a.query_blocks);
  }
}

template <class Tile, MaskKind kMask, bool kDropout>
__global__ void __launch_bounds__(Tile::kWarps * 32, Tile::kCtasPerSm)
    backward_kernel(const ArgsOf<BackwardArgs, kMask> a) {
  constexpr int kBlockQ = Tile::kBlockQ, kBlockK = Tile::kBlockK;
  constexpr int kWarpK = Tile::kKeysPerWarp, kPassQ = Tile::kPassQ, kSplitD = Tile::kSplitD;
  const BackwardMemory<Tile> memory;
  const QueryGradient<Tile> gradient;
  take_ticket(a, memory);
  const auto block = [&] { return KeyBlock::of<kMask>(ptx::load_shared(memory.ticket()), a); };
  const auto [key_block, kv_head_index, b, kv_head] = block();
  const int warp_row = threadIdx.x / 32 / kSplitD * kWarpK, part = threadIdx.x / 32 % kSplitD;
  const int first_k = key_block * kBlockK + warp_row;  // the warp's keys: first_k .. first_k + kWarpK - 1
  const KernelMask<kMask> mask(a.mask, a.tokens, b);
  const QueryTiles<kMask> tiles =
      query_tiles_of<Tile, kMask>(a, mask, {key_block * kBlockK, (key_block + 1) * kBlockK}, kv_head);
  const QueriesSeeing<kMask, kWarpK, kBlockQ> seeing(mask, first_k, memory.spans());
  QueryLoader<Tile, kMask> load_queries(a, tiles, b, kv_head, kv_head_index);
  start_load_keys(a, memory, b, kv_head, key_block, mask.keys);
  load_queries.start(memory, 0);

  KeyGradient<Tile> dk, dv;
  dk.clear(), dv.clear();
  const typename Tile::Score score(a.score());

  ptx::cp_async_wait<0>();
  __syncthreads();  // K, V and the first query tile are there, for all threads
  load_queries.start(memory, 1);

  int dq_tile = kv_head_index * a.group * a.query_blocks + tiles.begin;  // counted over all heads
  for (int tile = tiles.begin, slot = 0; !tiles.empty(); ++tile, ++dq_tile, slot ^= 1) {
    if (tile == tiles.end) {
      dq_tile += tiles.behind();  // the first tile of the next head
      if (dq_tile == (block().head_index + 1) * (a.group * a.query_blocks)) break;
      tile = tiles.begin;
      dq_tile += tiles.begin;
    }
    const int first_q = tile_at(tiles, tile) * kBlockQ;
    if (!seeing.none({first_q, first_q + kBlockQ})) {
#pragma unroll
      for (int pass = 0; pass < kBlockQ; pass += kPassQ) {
        Accumulator<kWarpK, kPassQ> p, ds;
        p.clear();
        multiply_rows_rows(p, memory.k(), warp_row, memory.q(slot), pass);
        if constexpr (Tile::Score::kBiased)
          add_bias<true>(
              p, first_k, first_q + pass, mask,
              raw_bias<typename Tile::Score>(a.alibi, dq_tile / a.query_blocks - b * a.heads, a.scale));
        if constexpr (Tile::Score::kCapped) cap_scores(p, a.cap);
        if (!seeing.all({first_q + pass, first_q + pass + kPassQ}))
          hide_unseen<true>(p, first_k, first_q + pass, mask);
        ds.clear();
        multiply_rows_rows(ds, memory.v(), warp_row, memory.dout(slot), pass);
        const auto kept = kept_of<kDropout, kWarpK, kPassQ>(a, mask, b, dq_tile, first_q + pass, first_k);
        scores_to_gradients<kDropout>(p, ds, score, memory.log2_sum_exp(slot) + pass * 4,
                                      memory.delta(slot) + pass * 4, kept, a.dropout.scale(), a.cap);
        const auto ds_packed = operand_a(ds);
        if (part == 0) store_scores(memory.ds(slot), warp_row, pass, ds_packed);
        multiply_registers_rows(dv, operand_a(p), columns_of<kSplitD>(memory.dout(slot), part), pass);
        multiply_registers_rows(dk, ds_packed, columns_of<kSplitD>(memory.q(slot), part), pass);
      }
    }

    ptx::cp_async_wait<0>();
    const int dq_at = kMask == MaskKind::kListed ? dq_tile - tile + first_q / kBlockQ : dq_tile;
    float* dq_sums = a.dq_sums + static_cast<int64_t>(dq_at) * gradient.kTileFloats;
    uint32_t* adders = a.counters + 1 + dq_at;
    const auto tile_adders = adders_of<Tile, kMask>(a, mask, first_q, key_block, kv_head);
    const int turn = turn_of(tile_adders, key_block);
    wait_turn(adders, turn, tile_adders.last);
    // Past this barrier dS is complete and tile i + 1 is there for all threads; no warp reads Q_i, dO_i any
    // more, whose slot the next load overwrites, nor dS of step i - 1, whose slot step i + 1 overwrites. It
    // is our turn, and all threads have stored the dQ of step i - 1: that turn can be passed on.
    __syncthreads();
    pass_turn<Tile>(a, adders, dq_tile, tile, tiles, block);
    load_queries.start(memory, slot);

    typename QueryGradient<Tile>::Part dq;
    if (turn < tile_adders.last) {
      gradient.load(dq_sums, dq);
    } else {
      dq.clear();
    }
    const Span rows = tile_adders.rows(first_q, key_block * kBlockK);
    multiply_cols_cols(dq, memory.ds(slot), gradient.q, memory.k(), gradient.d, rows.begin, rows.end);
    if (turn > tile_adders.first) {
      gradient.store(dq_sums, dq);
    } else {
      const KeyBlock here = block();  // found out again rather than kept: this loop is short of registers
      const int head = dq_tile / a.query_blocks - here.b * a.heads;
      gradient.write(a.dq.head_begin(here.b, head), a.dq.row, first_q, a.tokens, a.head_dim, dq,
                     Tile::Score::derivative(a.score()));
    }
  }

  __syncthreads();  // K is no longer read, so its tile can take dK; and all threads have stored the last dQ
  const KeyBlock done = block();
  pass_last_turn<Tile>(a, done, tiles);
  write_key_gradients<kDropout>(a, memory, done, mask.keys, warp_row, part, dk, dv);
}

}  // namespace tessera::attention::sm80
