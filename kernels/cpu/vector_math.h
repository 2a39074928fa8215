// fp32 functions within 2 units in the last place of libm. exp() is branch-free: compilers turn it into
// vector code.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace tessera::cpu {

// exp(x): x = n ln 2 + r with |r| <= ln 2 / 2, exp(r) by a Taylor polynomial of degree 7, 2^n through the
// exponent bits. exp(-inf) = 0, values under 1.2e-38 flush to 0, overflow gives inf, NaN stays NaN.
inline float exp(float x) {
  constexpr float kLog2e = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  // 1.5 * 2^23: adding it leaves the nearest integer in the low mantissa bits
  constexpr float kRound = 12582912.0f;
  const float clamped = x < -87.3f ? -87.3f : (x > 88.7f ? 88.7f : x);
  const float shifted = clamped * kLog2e + kRound;
  const float n = shifted - kRound;
  const float r = (clamped - n * kLn2High) - n * kLn2Low;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // Two halves, because 2^128 is not a float while the product still can be.
  const int32_t exponent = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound);
  const int32_t half = exponent >> 1;
  const float low = std::bit_cast<float>((half + 127) << 23),
              high = std::bit_cast<float>((exponent - half + 127) << 23);
  const float value = p * low * high;
  return x < -87.3f ? 0.0f : (x > 88.7f ? std::numeric_limits<float>::infinity() : value);
}

// Phi(x), by erfc, which keeps its digits where it is small
inline float normal_cdf(float x) { return 0.5f * std::erfc(-0.707106781f * x); }

// The largest element that is not NaN; -inf if there is none. A compiler may begin the reduction at the
// lowest finite number, as clang does, and so lose -inf.
inline float largest_of(const float* x, int64_t count) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  float largest = kNone;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < count; ++i) largest = x[i] > largest ? x[i] : largest;
  if (largest > std::numeric_limits<float>::lowest()) return largest;
  return std::find(x, x + count, std::numeric_limits<float>::lowest()) == x + count ? kNone : largest;
}

// The functions that kernels/activations.h asks for
struct Math {
  static float exp(float x) { return cpu::exp(x); }
  static float normal_cdf(float x) { return cpu::normal_cdf(x); }
};

// And those that kernels/logit_cap.h asks for
struct CapMath {
  static float exp(float x) { return cpu::exp(x); }
  static float reciprocal(float x) { return 1 / x; }
};

}  // namespace tessera::cpu
