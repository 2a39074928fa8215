// Online softmax of rows of scores (Milakov and Gimelshein, arXiv:1805.02867).
//
// Scores S stand in accumulators of mma or wgmma: a thread holds columns of two rows, r = 0 and 1
// (elements 4n + 2r and 4n + 2r + 1), and four neighbouring lanes share a row. After the key tiles
// seen so far, with an offset m for each row:
//   sum = sum over keys of 2^(c s - m),  O = sum over keys of 2^(c s - m) v,   c = scale log2(e)
// Any m gives the same O / sum and m + log2(sum); it only has to keep the powers in range. So m is not the
// largest c s but lags behind it: it is raised when some c s exceeds it by more than kSlack, which spares
// most steps the rescaling of O. The methods are apart, since O may be the target of a product under way:
//   raise(s): m for a tile of scores;  exponentiate(s): s becomes P;  rescale(o): O follows m.
#pragma once

#include <cmath>

#include "kernels/attention/common/score.cuh"
#include "kernels/base/ptx.cuh"

namespace tessera::attention {

inline constexpr float kSlack = ScaledScore::kSlack;

// A row that has seen nothing but -inf has nothing to subtract: -inf - (-inf) would be NaN.
__device__ __forceinline__ float finite(float offset) { return offset == -INFINITY ? 0 : offset; }

// How a thread adds up the powers of a row's columns: the bits of the sum depend on it. kOfProduct: it does
// not, a product with ones gives each thread the whole sums.
enum class SumOrder { kOneByOne, kPairs, kOfProduct };

template <SumOrder kOrder, class Score>
struct OnlineSoftmax {
  static constexpr float kSmallestNormal = 0x1p-126f;

  Score score;
  float offset[2] = {-INFINITY, -INFINITY};  // m; equal in the four lanes of a row
  float sum[2] = {0, 0};  // over this thread's own columns, which finish() adds up; kOfProduct: all
  float factor[2];        // what O has to be multiplied by, where behind
  bool behind = false;    // m was raised, and O does not know yet. Equal in a warp

  OnlineSoftmax() = default;
  __device__ __forceinline__ explicit OnlineSoftmax(ScoreArgs a) : score(a) {}

  template <int kCount>
  __device__ __forceinline__ void raise(const float (&s)[kCount]) {
    float largest[2];
    behind = __any_sync(~0u, exceeds(s, largest));  // a vote, so that the warp does not diverge
    if (behind) raise_to(largest);
  }
  // Whether m should be raised for a tile of scores, and the largest c s of each row
  template <int kCount>
  __device__ __forceinline__ bool exceeds(const float (&s)[kCount], float (&largest)[2]) const {
    bool raise = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float x = s[2 * r], y = s[2 * r + 1];  // two chains, each half as long
#pragma unroll
      for (int i = 4 + 2 * r; i < kCount; i += 4) x = fmaxf(x, s[i]), y = fmaxf(y, s[i + 1]);
      x = fmaxf(x, y);
      if constexpr (Score::kFramed) x += score.frame[r];
      x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
      x = fmaxf(x, __shfl_xor_sync(~0u, x, 2));
      largest[r] = score.log2(x);
      raise |= largest[r] > offset[r] + Score::kSlack;
    }
    return raise;
  }
  __device__ __forceinline__ void raise_to(const float (&largest)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float raised = fmaxf(offset[r], largest[r]);
      factor[r] = ptx::exp2(offset[r] - finite(raised));
      offset[r] = raised;
      sum[r] *= factor[r];
    }
  }

  template <int kCount>
  __device__ __forceinline__ void exponentiate(float (&s)[kCount]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float subtract = finite(offset[r]);
      if constexpr (Score::kFramed) subtract -= score.log2(score.frame[r]);
#pragma unroll
      for (int i = 2 * r; i < kCount; i += 4) {
        s[i] = ptx::exp2(score.log2_above(s[i], subtract));
        s[i + 1] = ptx::exp2(score.log2_above(s[i + 1], subtract));
        if constexpr (kOrder == SumOrder::kPairs) {
          sum[r] += s[i] + s[i + 1];
        } else if constexpr (kOrder == SumOrder::kOneByOne) {
          sum[r] += s[i];
          sum[r] += s[i + 1];
        }
      }
    }
  }

  // Where O is behind
  template <int kCount>
  __device__ __forceinline__ void rescale(float (&o)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) o[i] *= factor[i / 2 % 2];
  }

  // Before finish(): one more score of each row, of no key (kernels/attention/sinks.h), log2(e) times
  template <int kCount>
  __device__ __forceinline__ void add_sink(float (&o)[kCount], float log2_sink) {
    const float largest[2] = {log2_sink, log2_sink};
    raise_to(largest);
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (threadIdx.x % 4 == 0) sum[r] += ptx::exp2(log2_sink - finite(offset[r]));
    rescale(o);
  }

  // Adds up the four lanes of each row; o becomes `times` o / sum.
  template <int kCount>
  __device__ __forceinline__ void finish(float (&o)[kCount], float times = 1) {
    float inverse[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if constexpr (kOrder != SumOrder::kOfProduct) {
        sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
        sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
      }
      // Where all scores are -inf, the sum is 0 and so is O, which it must stay.
      inverse[r] = times / fmaxf(sum[r], kSmallestNormal);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) o[i] *= inverse[i / 2 % 2];
  }

  // After finish(): the natural log of the sum of exp(scale s) over a row.
  __device__ __forceinline__ float log_sum_exp(int r) const {
    return (offset[r] - Score::kBits + log2f(sum[r])) * kLn2;
  }
};

}  // namespace tessera::attention
