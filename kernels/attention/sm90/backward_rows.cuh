// Before the main kernel: delta = rowsum(dO o O) and LSE log2(e) of each row, and zeros where it counts.
#pragma once

#include <cuda_bf16.h>

#include <type_traits>

#include "kernels/attention/alibi.h"
#include "kernels/attention/common/dot.cuh"
#include "kernels/attention/common/launch.cuh"
#include "kernels/attention/common/view.h"
#include "kernels/hopper/ptx.cuh"

namespace tessera::attention::sm90 {

struct BackwardRowsArgs {
  View<const __nv_bfloat16> out, dout;
  const float* lse;       // [B, H, N]
  float* row_statistics;  // see BackwardWorkspace
  uint32_t* counters;
  uint32_t counter_count;
  int batch, tokens, query_tiles, heads;
  int head_dim;
  float delta_scale;  // with dropout, delta is multiplied by this
};
struct AlibiRowsArgs : BackwardRowsArgs {
  Alibi alibi;
};

inline constexpr int kRowsThreads = 256;

// What a warp takes: neighbouring heads, so that it reads 512 contiguous bytes of a token (of packed tensors,
// and its neighbours in the grid read the next), and tokens after one another.
template <int kHeadDim>
struct RowsShape {
  static constexpr int kLanes = kHeadDim / 8;  // a head, 16 bytes each
  static constexpr int kHeads = 32 / kLanes, kTokens = 32;
};

// kWhole: heads have kHeadDim columns, else fewer, and the last lanes of each have none. With AlibiRowsArgs
// the row's part of its bias within its tile is added to LSE, log2(e) times: the main kernel subtracts it.
template <int kHeadDim, int kBlockQ, bool kWhole, bool kDropout, class Args>
__global__ void __launch_bounds__(kRowsThreads, 2) backward_rows_kernel(const Args a) {
  constexpr bool kAlibi = std::is_same_v<Args, AlibiRowsArgs>;
  using Shape = RowsShape<kHeadDim>;
  constexpr int kLanes = Shape::kLanes, kSlots = Shape::kTokens / kLanes, kTokensUnderWay = 4;
  const uint32_t thread = blockIdx.x * kRowsThreads + threadIdx.x;
  for (uint32_t i = thread; i < a.counter_count; i += gridDim.x * kRowsThreads) a.counters[i] = 0;

  const uint32_t head_groups = (a.heads + Shape::kHeads - 1) / Shape::kHeads;
  const uint32_t token_groups = (a.query_tiles * kBlockQ) / Shape::kTokens;
  const uint32_t warp = thread / 32, group = warp / head_groups;
  const int lane = threadIdx.x % 32;
  const int h = warp % head_groups * Shape::kHeads + lane / kLanes, b = group / token_groups;
  const int first = group % token_groups * Shape::kTokens;
  const bool inside = h < a.heads && b < a.batch;
  const bool has_columns = kWhole || lane % kLanes * 8 < a.head_dim;

  // Slot s of a lane: the statistics of its head and of token first + s kLanes + lane % kLanes
  const int64_t head = static_cast<int64_t>(b) * a.heads + h;
  float lse[kSlots], delta[kSlots];
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    const int t = first + slot * kLanes + lane % kLanes;
    lse[slot] = inside && t < a.tokens ? a.lse[head * a.tokens + t] : INFINITY;
    delta[slot] = 0;
  }

  const auto out = a.out.head_begin(b, h) + lane % kLanes * 8,
             dout = a.dout.head_begin(b, h) + lane % kLanes * 8;
#pragma unroll
  for (int i = 0; i < Shape::kTokens; i += kTokensUnderWay) {
    uint4 x[kTokensUnderWay] = {}, y[kTokensUnderWay] = {};
#pragma unroll
    for (int j = 0; j < kTokensUnderWay; ++j) {
      const int64_t t = first + i + j;
      if (inside && has_columns && t < a.tokens) {
        x[j] = __ldg(reinterpret_cast<const uint4*>(out + t * a.out.row));
        y[j] = __ldg(reinterpret_cast<const uint4*>(dout + t * a.dout.row));
      }
    }
#pragma unroll
    for (int j = 0; j < kTokensUnderWay; ++j) {
      float sum = dot8(x[j], y[j]);
#pragma unroll
      for (int other = kLanes / 2; other > 0; other /= 2) sum += __shfl_xor_sync(~0u, sum, other);
      if (lane % kLanes == (i + j) % kLanes) delta[(i + j) / kLanes] = sum;
    }
  }
  if (!inside) return;
  [[maybe_unused]] float slope;  // log2(e) times
  if constexpr (kAlibi) {
    auto own_head = static_cast<uint32_t>(h);
    ptx::opaque(own_head);  // else it is computed before the rows are read, and takes a register meanwhile
    slope = a.alibi.slope(own_head) * kLog2e;
  }
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    const int t = first + slot * kLanes + lane % kLanes;
    float* to = a.row_statistics + (head * a.query_tiles + t / kBlockQ) * (2 * kBlockQ) + t % kBlockQ;
    to[0] = log2_sum_exp_of(lse[slot]);
    if constexpr (kAlibi) to[0] += slope * static_cast<float>(t % kBlockQ);
    to[kBlockQ] = kDropout ? delta[slot] * a.delta_scale : delta[slot];
  }
}

template <class Shape, class Args>
AttnStatus launch_row_statistics(const AttnBackward& f, const Args& rows, CUstream_st* stream) {
  using Rows = RowsShape<Shape::kHeadDim>;
  const int64_t warps = int64_t{rows.batch} * ((rows.heads + Rows::kHeads - 1) / Rows::kHeads) *
                        (rows.query_tiles * Shape::kBlockQ / Rows::kTokens);
  const auto ctas = static_cast<unsigned>((warps * 32 + kRowsThreads - 1) / kRowsThreads);
  const auto kernel =
      f.problem.head_dim == Shape::kHeadDim
          ? backward_rows_kernel<Shape::kHeadDim, Shape::kBlockQ, true, Shape::kDropout, Args>
          : backward_rows_kernel<Shape::kHeadDim, Shape::kBlockQ, false, Shape::kDropout, Args>;
  return launch(kernel, ctas, kRowsThreads, 0, stream, rows);
}

}  // namespace tessera::attention::sm90
