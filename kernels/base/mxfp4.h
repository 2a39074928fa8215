// MXFP4, a number in 4 bits (OCP Microscaling Formats, version 1.0, section 5.3.3): an E2M1 value, which is
// one of 0, 0.5, 1, 1.5, 2, 3, 4, 6 with a sign, times a scale in E8M0, which is a power of two. kMxfp4Block
// numbers of a row share a scale: the smallest one for which the largest magnitude among them is at most 6
// times the scale, so that no number is cut off. A number becomes the nearest value; if two are equally near,
// the one with the even code.
#pragma once

#include <cstdint>

#include "kernels/base/host_device.h"

namespace tessera {

inline constexpr int kMxfp4Block = 32;

TESSERA_HOST_DEVICE inline float mxfp4_value(uint32_t code) {
  constexpr float kMagnitudes[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  const float magnitude = kMagnitudes[code & 7];
  return code & 8 ? -magnitude : magnitude;
}

TESSERA_HOST_DEVICE inline float float_of_bits(uint32_t bits) {
  union {
    uint32_t bits;
    float value;
  } both{bits};
  return both.value;
}
TESSERA_HOST_DEVICE inline uint32_t bits_of_float(float value) {
  union {
    float value;
    uint32_t bits;
  } both{value};
  return both.bits;
}

// The code of the value nearest to x, a number that has been divided by its scale; -0 keeps its sign.
TESSERA_HOST_DEVICE inline uint32_t mxfp4_code(float x) {
  const float a = x < 0 ? -x : x;
  const uint32_t magnitude = uint32_t{a > 0.25f} + uint32_t{a >= 0.75f} + uint32_t{a > 1.25f} +
                             uint32_t{a >= 1.75f} + uint32_t{a > 2.5f} + uint32_t{a >= 3.5f} +
                             uint32_t{a > 5.0f};
  return magnitude | (bits_of_float(x) >> 28 & 8);
}

// E8M0: the byte e stands for the scale 2^(e - 127), and the byte 255 for "not a number".
inline constexpr uint32_t kNoMxfp4Scale = 255;

// The scale of numbers whose largest magnitude has these bits in fp32
TESSERA_HOST_DEVICE inline uint8_t mxfp4_scale(uint32_t largest) {
  if (largest >= 0x7f800000u) return kNoMxfp4Scale;              // infinite, or not a number
  const uint32_t exponent = (largest + 0x3fffffu) >> 23;         // rounded up from 1.5 2^e
  return static_cast<uint8_t>(exponent < 2 ? 0 : exponent - 2);  // 6 = 1.5 2^2
}

// The bits in fp32 of a scale, and of 1 / scale
TESSERA_HOST_DEVICE inline uint32_t mxfp4_scale_bits(uint32_t scale) {
  if (scale == kNoMxfp4Scale) return 0x7fc00000u;
  return scale == 0 ? 0x00400000u : scale << 23;
}
TESSERA_HOST_DEVICE inline uint32_t mxfp4_inverse_bits(uint32_t scale) {
  if (scale == kNoMxfp4Scale) return 0x7fc00000u;
  return scale == 254 ? 0x00400000u : (254 - scale) << 23;
}

}  // namespace tessera
