// What each wrapper of this header does, on the emulated GPU.
#pragma once

#include "kernels/base/ptx.cuh"

namespace tessera::ptx {

// Sums that fp32 holds, as a product of two bf16 and what is left of one, are rounded once.
inline uint32_t fma_bf16x2(uint32_t x, uint32_t y, uint32_t z) {
  const auto half = [&](int bits) {
    const auto of = [bits](uint32_t pair) { return float_of_bf16(pair >> bits & 0xffff); };
    return std::fma(of(x), of(y), of(z));
  };
  return pack_bf16(half(0), half(16));
}

inline void store_shared(uint32_t at, uint32_t value) { store_to_shared(at, value); }
inline uint32_t load_shared(uint32_t at) { return load_from_shared<uint32_t>(at); }

}  // namespace tessera::ptx
