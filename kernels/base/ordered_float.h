// Floats as unsigned words of the same order: the largest of many is found by comparing words, in any order,
// by atomics as well. 0 comes before the words of all numbers: none yet.
#pragma once

#include <cstdint>

#include "kernels/base/host_device.h"

namespace tessera {

TESSERA_HOST_DEVICE inline uint32_t ordered_word(float value) {
  constexpr uint32_t kSign = 0x80000000u;
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  return bits & kSign ? ~bits : bits | kSign;
}

// -inf of 0
TESSERA_HOST_DEVICE inline float float_of_ordered(uint32_t word) {
  constexpr uint32_t kSign = 0x80000000u;
  if (word == 0) return -__builtin_huge_valf();
  return __builtin_bit_cast(float, word& kSign ? word & ~kSign : ~word);
}

}  // namespace tessera
