// The functions of a hidden layer and their slopes, for results that are rounded to bf16: few instructions,
// as an epilogue wants, and errors of some 1e-7. kernels/cuda/activations.cuh is as exact as fp32 allows.
#pragma once

#include "kernels/base/ptx.cuh"

namespace tessera::products {

inline constexpr float kLog2E = 1.4426950408889634f;

// GELU in its tanh form. With u = c (x + k x^3), (1 + tanh u) / 2 = s = 1 / (1 + exp(-2 u)), so that
//   y = x s,  y' = s + x s' = s + x s (1 - s) 2 u'
// No difference of near numbers, as 1 + tanh u would be for x far below 0.
struct TanhGelu {
  static constexpr float kC = 0.7978845608028654f, kK = 0.044715f;  // c = sqrt(2 / pi)

  static __device__ __forceinline__ float share(float x, float square) {
    const float u = x * fmaf(square, -2 * kC * kK * kLog2E, -2 * kC * kLog2E);  // in octaves
    return ptx::reciprocal(1 + ptx::exp2(u));
  }
  static __device__ __forceinline__ float value(float x) { return x * share(x, x * x); }
  static __device__ __forceinline__ float slope(float x) {
    const float square = x * x, s = share(x, square);
    return fmaf(x * fmaf(square, 6 * kC * kK, 2 * kC), fmaf(-s, s, s), s);
  }
};

// x Phi(x) = max(x, 0) - |x| Phi(-|x|), and its slope Phi(x) + x phi(x). Abramowitz and Stegun, Handbook of
// Mathematical Functions, 7.1.26: erfc(z) = (a1 t + ... + a5 t^5) exp(-z^2) with t = 1 / (1 + p z), to 1.5e-7
// for z >= 0. With z = |x| / sqrt(2), exp(-z^2) is phi(x) but for a factor, and Phi(-|x|) = erfc(z) / 2.
struct ExactGelu {
  static constexpr float kRootHalf = 0.7071067811865476f, kDensity = 0.3989422804014327f;  // 1 / sqrt(2 pi)

  static __device__ __forceinline__ float bell(float x) { return ptx::exp2(x * x * (-0.5f * kLog2E)); }
  static __device__ __forceinline__ float below(float x, float bell) {  // Phi(-|x|)
    const float t = ptx::reciprocal(fmaf(fabsf(x), 0.3275911f * kRootHalf, 1.0f));
    float sum = fmaf(t, 0.5f * 1.061405429f, 0.5f * -1.453152027f);
    sum = fmaf(t, sum, 0.5f * 1.421413741f);
    sum = fmaf(t, sum, 0.5f * -0.284496736f);
    return fmaf(t, sum, 0.5f * 0.254829592f) * t * bell;
  }
  static __device__ __forceinline__ float value(float x) {
    return fmaf(-fabsf(x), below(x, bell(x)), fmaxf(x, 0));
  }
  static __device__ __forceinline__ float slope(float x) {
    const float density = bell(x), tail = below(x, density);
    return fmaf(x * kDensity, density, x < 0 ? tail : 1 - tail);
  }
};

struct NoActivation {};

struct Relu {
  static __device__ __forceinline__ float value(float x) { return x < 0 ? 0 : x; }
  static __device__ __forceinline__ float slope(float x) { return x > 0 ? 1 : 0; }
};

}  // namespace tessera::products
