// Floats as unsigned words in the same order. The largest of many floats is the largest word, so
// atomicMax() finds it, whatever order they come in. The word 0 is below the word of every number: it means
// "none yet".
#pragma once

#include <cstdint>

#include "kernels/base/host_device.h"

namespace tessera {

TESSERA_HOST_DEVICE inline uint32_t ordered_word(float value) {
  constexpr uint32_t kSign = 0x80000000u;
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  return bits & kSign ? ~bits : bits | kSign;
}

// The reverse; -infinity for the word 0
TESSERA_HOST_DEVICE inline float float_of_ordered(uint32_t word) {
  constexpr uint32_t kSign = 0x80000000u;
  if (word == 0) return -__builtin_huge_valf();
  return __builtin_bit_cast(float, word& kSign ? word & ~kSign : ~word);
}

}  // namespace tessera
