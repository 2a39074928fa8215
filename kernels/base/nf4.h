// NF4, a number in 4 bits (Dettmers et al., arXiv:2305.14314, section 3): one of 16 values between -1 and 1,
// which cut a normal distribution into parts of equal probability, times a scale. kNf4Block numbers of a row
// share a scale: the largest magnitude among them. Codes, values and rounding are those of bitsandbytes.
#pragma once

#include <cstdint>

#include "kernels/base/host_device.h"

namespace tessera {

inline constexpr int kNf4Block = 64;

TESSERA_HOST_DEVICE inline float nf4_value(uint32_t code) {
  constexpr float kValues[] = {-1.0f,
                               -0.6961928009986877f,
                               -0.5250730514526367f,
                               -0.39491748809814453f,
                               -0.28444138169288635f,
                               -0.18477343022823334f,
                               -0.09105003625154495f,
                               0.0f,
                               0.07958029955625534f,
                               0.16093020141124725f,
                               0.24611230194568634f,
                               0.33791524171829224f,
                               0.44070982933044434f,
                               0.5626170039176941f,
                               0.7229568362236023f,
                               1.0f};
  return kValues[code];
}

// What numbers of a block are multiplied by before nf4_code(); `scale`: the largest magnitude
TESSERA_HOST_DEVICE inline float nf4_inverse(float scale) {
  constexpr float kSmallest = 1e-38f;
  return 1.0f / (scale < kSmallest ? kSmallest : scale);
}

// The code of the value nearest to x, of two that are equally near the lower one
TESSERA_HOST_DEVICE inline uint32_t nf4_code(float x) {
  uint32_t code = 0;  // found bit by bit: x is above the bound between code - 1 and code
  for (uint32_t bit = 8; bit > 0; bit /= 2) {
    const float bound = (nf4_value(code + bit) + nf4_value(code + bit - 1)) / 2;
    if (!(x <= bound)) code += bit;
  }
  return code;
}

}  // namespace tessera
