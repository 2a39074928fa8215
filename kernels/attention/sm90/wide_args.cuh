// The backward of heads of more than 128 columns, in two kernels: what they share.
//
// dK and dV of 64 keys, 256 columns each, fill the registers of two warpgroups, and so does dQ of 128
// queries: a kernel that has all three as for narrower heads has no room. So one kernel sums over queries,
// the other over keys, each with its own scores: seven products in place of five, but no sum passes through
// memory, and no CTA waits for another. Every sum has one order.
//   wide_keys.cuh     dV += P^T dO,  dK += dS^T Q    a CTA has 64 keys of a key/value head
//   wide_queries.cuh  dQ += dS K                     a CTA has 128 queries of a head
// As in backward.cuh: P = 2^(c S - L), dS = P o (dP - delta), c = scale log2(e), L = LSE log2(e). With a cap,
// dS has Y = P o (the derivative of the cap) in place of P, which is known while S is.
//
// Any mask: spans of the rows of a CTA are known before its first step, and cost its steps nothing.
#pragma once

#include "kernels/attention/mask.h"
#include "kernels/attention/sm90/backward_scores.cuh"
#include "kernels/hopper/ring.cuh"
#include "kernels/hopper/tile.cuh"

namespace tessera::attention::sm90 {

struct WideShape {
  using Score = ScaledScore;
  static constexpr int kHeadDim = 256, kRows = 64;  // of every tile
  static constexpr int kBlockQ = kRows;             // of row statistics
  static constexpr bool kWhole = true, kDropout = false;
  static constexpr int kConsumers = 2, kThreads = (kConsumers + 1) * kWarpgroup;
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;  // of 3 x 168
};

struct WideArgs {
  CUtensorMap q, k, v, dout, dq, dk, dv;
  const float* row_statistics;  // [B, H, query tile, 2, 64]: as in BackwardWorkspace
  int heads, kv_heads, heads_per_kv, query_tiles, all_heads, all_kv_heads;
  ScoreArgs score;
  Mask mask;     // of the first sequence
  ScoreCap cap;  // with a capped score

  __device__ __forceinline__ const float* statistics(int batch, int head, int tile) const {
    return row_statistics +
           ((static_cast<int64_t>(batch) * heads + head) * query_tiles + tile) * (2 * WideShape::kRows);
  }
};

using WideTile = Tile<WideShape::kRows, WideShape::kHeadDim>;

// A row's span, and none past the end
__device__ __forceinline__ Span keys_seen(const Mask& mask, int query) {
  return query < mask.queries ? mask.keys_of(query) : Span{0, 0};
}

// A sum of 64 rows to memory, through shared memory that this warpgroup alone has read
template <class Shape>
__device__ __forceinline__ void write_sum(float (&sum)[128], float scale, WideTile through,
                                          const CUtensorMap& map, int warpgroup, int row, int head,
                                          int batch) {
#pragma unroll
  for (float& x : sum) x *= scale;
  uint32_t packed[64];
  pack(packed, sum);
  ptx::barrier_sync(1 + warpgroup, kWarpgroup);  // else a warp could still read what lies there
  store_fragment(through, 0, 0, packed);
  ptx::fence_shared_for_async();
  ptx::barrier_sync(1 + warpgroup, kWarpgroup);
  if (threadIdx.x % kWarpgroup == 0) {
    store_tile<Shape::kWhole>(map, through, row, head, batch);
    ptx::bulk_commit();
    ptx::bulk_wait_read<0>();
  }
}

}  // namespace tessera::attention::sm90
