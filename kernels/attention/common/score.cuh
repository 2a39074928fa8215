// Score rules: how the product x = q k^T of a query and a key becomes their score s. A rule is a template
// argument of every kernel; in most kernels the tile names it.
//
// Softmax takes powers of two, so a rule gives s log2(e). The derivative ds/dx is a factor of dQ and dK: a
// kernel multiplies their sums by it once. If the derivative of a rule depends on x, the rule has no
// derivative(ScoreArgs), so kernels that call it do not compile: they have to multiply dS by the derivative
// instead.
//
// A rule with kCapped replaces s by c tanh(s / c). Its kernels first replace x by the capped x, continue as
// with other rules, and multiply dS by the derivative of the cap.
//
// A rule with kBiased adds a bias to s, which does not change the derivative. Its kernels first add bias /
// scale to x, at a place where they know the query and the key, and continue as with other rules.
#pragma once

#include "kernels/attention/alibi.h"
#include "kernels/attention/common/view.h"
#include "kernels/base/ptx.cuh"

namespace tessera::attention {

// What a call says about scores
struct ScoreArgs {
  float scale;
};
template <class Problem>  // AttnProblem or AttnDecodeProblem
ScoreArgs score_args_of(const Problem& p) {
  return {.scale = p.scale};
}

// s = scale x
struct ScaledScore {
  static constexpr bool kBiased = false, kFramed = false, kCapped = false;
  // For OnlineSoftmax. kSlack: how far an offset may lag; probabilities then stay below 2^8, far inside bf16.
  // kBits: by how many binades probabilities are larger than 2^(c x - offset)
  static constexpr float kSlack = 8, kBits = 0;
  float log2_scale;  // c = scale log2(e)

  ScaledScore() = default;
  __device__ __forceinline__ explicit ScaledScore(const ScoreArgs& a) : log2_scale(a.scale * kLog2e) {}

  // The same, but c is above 0 even if the scale is 0: a masked score of -inf times 0 would be NaN.
  static __device__ __forceinline__ ScaledScore positive(const ScoreArgs& a) {
    ScaledScore score;
    score.log2_scale = fmaxf(a.scale * kLog2e, 1e-30f);
    return score;
  }

  // c x
  __device__ __forceinline__ float log2(float x) const { return x * log2_scale; }
  // The same, rounded by itself and not fused into a sum: so the difference of equal scores is 0
  __device__ __forceinline__ float log2_rounded(float x) const { return __fmul_rn(x, log2_scale); }
  // c x - offset
  __device__ __forceinline__ float log2_above(float x, float offset) const {
    return fmaf(x, log2_scale, -offset);
  }
  static __device__ __forceinline__ float value(const ScoreArgs& a, float x) { return x * a.scale; }
  static __device__ __forceinline__ float derivative(const ScoreArgs& a) { return a.scale; }
};

// s = scale x - m |i - j|, of a query at i and a key at j
struct AlibiScore : ScaledScore {
  static constexpr bool kBiased = true;
  using ScaledScore::ScaledScore;
};

// s = c tanh(scale x / c)
struct CappedScore : ScaledScore {
  static constexpr bool kCapped = true;
  using ScaledScore::ScaledScore;
  // A cap is only of calls whose scale is above 0.
  static __device__ __forceinline__ CappedScore positive(const ScoreArgs& a) { return CappedScore(a); }
};

// A cap in units of x = q k^T: y = (c / scale) tanh(x scale / c)
struct ScoreCap {
  float share = 0, inverse = 0;  // scale / c, c / scale
  float of_log2 = 0;             // ln 2 / c
  float nearby = 0;              // |x| up to which near() may be called
  float series[3] = {};          // of near(), in x^2

  // tanh to some 3e-7, by two operations beside the sum and the product
  __device__ __forceinline__ float fast(float x) const {
    const float e = ptx::exp2(x * share * (2 * kLog2e));
    return fmaf(-2 * inverse, ptx::reciprocal(1 + e), inverse);
  }
  // tanh(t), |t| up to kNear, as a polynomial, to 2.3e-6 of its value
  __device__ __forceinline__ float near(float x) const {
    const float v = x * x;
    return fmaf(fmaf(fmaf(series[2], v, series[1]), v, series[0]), v, kNearZero) * x;
  }
  __device__ __forceinline__ float exact(float x) const { return tanhf(x * share) * inverse; }
  // dy/dx; 0 of what a mask has hidden, -inf
  __device__ __forceinline__ float derivative(float y) const {
    const float t = fmaxf(y * share, -1.0f);
    return fmaf(-t, t, 1.0f);
  }
  // The same, from p = 2^(y scale log2(e) - log2_sum_exp), whose rounding hardly moves it. It lies between 0
  // and 1 also where p is 0 or log2_sum_exp is infinite.
  __device__ __forceinline__ float derivative(float p, float log2_sum_exp) const {
    const float t = fminf(fabsf(ptx::log2(p) + log2_sum_exp) * of_log2, 1.0f);
    return fmaf(-t, t, 1.0f);
  }

  // tanh(t) / t = kNearZero + kSeries[0] t^2 + kSeries[1] t^4 + kSeries[2] t^6: Chebyshev interpolation
  static constexpr float kNear = 0.6f, kNearZero = 0.999997778f,
                         kSeries[3] = {-0.33313685f, 0.130552726f, -0.0408820205f};
};
template <class Problem>  // AttnProblem or AttnDecodeProblem
ScoreCap score_cap_of(const Problem& p) {
  if (p.score_cap == 0) return {};
  const float share = p.scale / p.score_cap, inverse = p.score_cap / p.scale, square = share * share;
  ScoreCap cap{.share = share, .inverse = inverse, .of_log2 = 1 / (p.score_cap * kLog2e)};
  if (share > 1e-5f && share < 1e5f) {  // powers of it are far from the ends of fp32
    cap.nearby = ScoreCap::kNear * inverse;
    float power = square;
    for (int i = 0; i < 3; ++i, power *= square) cap.series[i] = ScoreCap::kSeries[i] * power;
  }
  return cap;
}

// The same for keys that are not behind their query: a query of a tile of scores then has a bias m (j - i),
// of which kernels add the part of the column within the tile to x. What is the same for all of a thread's
// columns of a row, m (first key - i), is the row's frame, in units of x. It is added to a row's largest x
// and to the offset that is subtracted, so that an element costs one operation.
struct FramedAlibiScore : AlibiScore {
  static constexpr bool kFramed = true;
  float frame[2];  // of the two rows of a thread

  using AlibiScore::AlibiScore;
  // ALiBi is only of calls whose scale is above 0.
  static __device__ __forceinline__ FramedAlibiScore positive(const ScoreArgs& a) {
    return FramedAlibiScore(a);
  }
};

// The bias of a head's scores in units of x
struct RawBias {
  float slope;  // m / scale

  __device__ __forceinline__ float of(int query, int key) const { return alibi_bias(slope, query, key); }
};
template <class Score>  // one without a bias: nothing is computed
__device__ __forceinline__ RawBias raw_bias(Alibi alibi, int head, float scale) {
  if constexpr (Score::kBiased) return {alibi.slope(head) / scale};
  return {0};
}

}  // namespace tessera::attention
