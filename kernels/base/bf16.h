// bfloat16: the upper half of an IEEE single, rounded to nearest even, or at random.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/base/host_device.h"

namespace tessera {

inline uint16_t bf16_from_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return static_cast<uint16_t>((bits >> 16) | 0x40u);  // NaN stays NaN, quiet
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// The float with these bits, rounded up or down at random by the lower 16 bits of `random`. If these are
// uniform, the mean over many draws is the float itself. They are added to the 16 bits below the mantissa,
// which are then cut off, so a number that bf16 can hold does not change. No finite float becomes infinite.
TESSERA_HOST_DEVICE inline uint16_t bf16_at_random(uint32_t bits, uint32_t random) {
  constexpr uint32_t kExponent = 0x7f800000u;
  if ((bits & 0x7fffffffu) > kExponent) return static_cast<uint16_t>((bits >> 16) | 0x40u);  // NaN stays NaN
  const uint32_t sum = bits + (random & 0xffffu);
  const bool beyond = (sum & kExponent) == kExponent;  // infinite, or above the largest bf16
  return static_cast<uint16_t>((beyond ? bits : sum) >> 16);
}

inline float float_from_bf16(uint16_t value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

}  // namespace tessera
