// Online softmax of a warp's rows of scores (Milakov and Gimelshein, arXiv:1805.02867): a state, three verbs.
//
// Scores S stand in mma accumulators: thread l of a warp holds, per m16 tile, rows l/4 and l/4 + 8 (elements
// 0,1 and 2,3), so four neighbouring lanes share a row. After the key tiles seen so far, with an offset m for
// each row:
//   sum = sum over keys of 2^(c s - m),  O = sum over keys of 2^(c s - m) v,   c = scale log2(e)
// Any m gives the same O / sum and m + log2(sum); it only has to keep the powers in range. So m is not the
// largest c s but lags behind it: it is raised when some c s exceeds it by more than kSlack, which spares
// most steps the rescaling of O.
#pragma once

#include "kernels/attention/common/ptx.cuh"
#include "kernels/attention/common/view.h"

namespace tessera::attention {

template <int kTilesM>
struct OnlineSoftmax {
  static constexpr float kSmallestNormal = 0x1p-126f;
  static constexpr float kSlack = 8;  // so that probabilities stay below 2^8, far inside bf16

  float log2_scale;          // c
  float offset[kTilesM][2];  // m; equal in the four lanes of a row
  float sum[kTilesM][2];     // over this thread's own columns: the four lanes are added in finish()

  __device__ __forceinline__ explicit OnlineSoftmax(float scale) : log2_scale(scale * kLog2e) {
#pragma unroll
    for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) offset[m][r] = -INFINITY, sum[m][r] = 0;
    }
  }

  // Takes a tile of scores into the state: s becomes P = 2^(c s - m), with m raised if need be, and o brought
  // to that m.
  template <int kTilesN, int kTilesO>
  __device__ __forceinline__ void update(float (&s)[kTilesM][kTilesN][4], float (&o)[kTilesM][kTilesO][4]) {
    raise_offsets(s, o);
#pragma unroll
    for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float subtract = finite(offset[m][r]);
#pragma unroll
        for (int n = 0; n < kTilesN; ++n) {
          float &x = s[m][n][2 * r], &y = s[m][n][2 * r + 1];
          x = ptx::exp2(fmaf(x, log2_scale, -subtract));
          y = ptx::exp2(fmaf(y, log2_scale, -subtract));
          sum[m][r] += x;
          sum[m][r] += y;
        }
      }
    }
  }

  // Adds up the four lanes of each row and divides o by the sum.
  template <int kTilesO>
  __device__ __forceinline__ void finish(float (&o)[kTilesM][kTilesO][4]) {
#pragma unroll
    for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        sum[m][r] += __shfl_xor_sync(~0u, sum[m][r], 1);
        sum[m][r] += __shfl_xor_sync(~0u, sum[m][r], 2);
        // Where all scores are -inf, the sum is 0 and so is O, which it must stay.
        const float inverse = 1 / fmaxf(sum[m][r], kSmallestNormal);
#pragma unroll
        for (int n = 0; n < kTilesO; ++n) {
          o[m][n][2 * r] *= inverse;
          o[m][n][2 * r + 1] *= inverse;
        }
      }
    }
  }

  // After finish(): the natural log of the sum of exp(scale s) over a row.
  __device__ __forceinline__ float log_sum_exp(int m, int r) const {
    return (offset[m][r] + log2f(sum[m][r])) * kLn2;
  }

 private:
  // A row that has seen nothing but -inf has nothing to subtract: -inf - (-inf) would be NaN.
  static __device__ __forceinline__ float finite(float offset) { return offset == -INFINITY ? 0 : offset; }

  template <int kTilesN, int kTilesO>
  __device__ __forceinline__ void raise_offsets(const float (&s)[kTilesM][kTilesN][4],
                                                float (&o)[kTilesM][kTilesO][4]) {
    float largest[kTilesM][2];
    bool raise = false;
#pragma unroll
    for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float x = -INFINITY;
#pragma unroll
        for (int n = 0; n < kTilesN; ++n) x = fmaxf(x, fmaxf(s[m][n][2 * r], s[m][n][2 * r + 1]));
        x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
        x = fmaxf(x, __shfl_xor_sync(~0u, x, 2));
        largest[m][r] = x * log2_scale;
        raise |= largest[m][r] > offset[m][r] + kSlack;
      }
    }
    if (!__any_sync(~0u, raise)) return;  // a vote, so that the warp does not diverge
#pragma unroll
    for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float raised = fmaxf(offset[m][r], largest[m][r]);
        const float rescale = ptx::exp2(offset[m][r] - finite(raised));
        offset[m][r] = raised;
        sum[m][r] *= rescale;
#pragma unroll
        for (int n = 0; n < kTilesO; ++n) {
          o[m][n][2 * r] *= rescale;
          o[m][n][2 * r + 1] *= rescale;
        }
      }
    }
  }
};

}  // namespace tessera::attention
