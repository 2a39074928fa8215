// FP8: numbers of one byte, a sign and then
//   e4m3  4 bits of exponent, 3 of mantissa; up to 448, steps of 2^-9 below 2^-6. For weights, activations
//   e5m2  5 bits of exponent, 2 of mantissa; up to 57344, steps of 2^-16 below 2^-14. For gradients
// as in the OCP 8-bit floating point specification. A tensor has one scale, a power of two, by which its
// elements are multiplied after they are read: so scaling rounds nothing.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/base/check.h"
#include "kernels/base/tensor.h"

namespace tessera {

struct Fp8Format {
  int mantissa, bias;  // bits; of the exponent
  float largest;
};
inline constexpr Fp8Format kE4M3{.mantissa = 3, .bias = 7, .largest = 448},
    kE5M2{.mantissa = 2, .bias = 15, .largest = 57344};

inline bool is_fp8(DType dtype) {
  switch (dtype) {
    case DType::kE4M3:
    case DType::kE5M2:
      return true;
    case DType::kF32:
    case DType::kBF16:
    case DType::kI32:
    case DType::kU16:
      break;
  }
  return false;
}
inline Fp8Format fp8_format(DType dtype) {
  check(is_fp8(dtype), "the dtype must be e4m3 or e5m2, found {}", name_of(dtype));
  return dtype == DType::kE4M3 ? kE4M3 : kE5M2;
}

// The number of the format that is next to x: of two as near, the one with an even mantissa. What is beyond
// the largest becomes that; NaN stays NaN.
inline float round_to_fp8(float x, const Fp8Format& format) {
  const float size = std::fabs(x), bounded = size > format.largest ? format.largest : size;
  const int exponent = static_cast<int>(std::bit_cast<uint32_t>(bounded) >> 23) - 127,
            least = 1 - format.bias, last = (exponent > least ? exponent : least) - format.mantissa;
  // A float of this size has a last place of 2^last: adding it rounds there, and taking it away is exact.
  const float shift = std::bit_cast<float>(static_cast<uint32_t>(last + 23 + 127) << 23);
  const float rounded = (bounded + shift) - shift;
  return std::isnan(x) ? x : std::copysign(rounded, x);
}

inline float float_from_fp8(uint8_t value, DType dtype) {
  const Fp8Format f = fp8_format(dtype);
  const int exponent = (value & 0x7f) >> f.mantissa, mantissa = value & ((1 << f.mantissa) - 1);
  const float sign = value & 0x80 ? -1.0f : 1.0f;
  const int last = 1 - f.bias - f.mantissa;  // the place of the least number
  if (dtype == DType::kE4M3 && (value & 0x7f) == 0x7f) return std::bit_cast<float>(0x7fc00000u);
  if (dtype == DType::kE5M2 && exponent == 31)
    return std::bit_cast<float>(mantissa != 0 ? 0x7fc00000u : value & 0x80 ? 0xff800000u : 0x7f800000u);
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), last);
  return sign * std::ldexp(static_cast<float>(mantissa + (1 << f.mantissa)), last + exponent - 1);
}

inline uint8_t fp8_from_float(float x, DType dtype) {
  const Fp8Format f = fp8_format(dtype);
  const auto sign = static_cast<uint8_t>(std::signbit(x) ? 0x80 : 0);
  if (std::isnan(x)) return sign | 0x7f;
  const float size = std::fabs(round_to_fp8(x, f));
  const int last = 1 - f.bias - f.mantissa;
  // size = mantissa 2^(last + exponent), the mantissa with its hidden bit
  const int exponent = size > 0 ? std::max(0, std::ilogb(size) - last - f.mantissa) : 0;
  const auto mantissa = static_cast<int>(std::ldexp(size, -last - exponent));
  // The smallest numbers have no hidden bit: the values count on from 0.
  return sign | static_cast<uint8_t>(mantissa + (exponent << f.mantissa));
}

}  // namespace tessera
