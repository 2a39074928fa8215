// PTX of compute capability 8.0: one instruction, one wrapper. Sections are those of the PTX ISA 9.0.
// Whatever touches memory carries a "memory" clobber, so that the compiler moves it across no barrier.
#pragma once

#include <cstdint>

#include "kernels/base/ptx.cuh"

namespace tessera::ptx {

// x y + z in both halves, each rounded to bf16 once (9.7.4.4 fma)
__device__ __forceinline__ uint32_t fma_bf16x2(uint32_t x, uint32_t y, uint32_t z) {
  uint32_t sum;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(x), "r"(y), "r"(z));
  return sum;
}

// Stores and loads by shared address (9.7.9.11 st, 9.7.9.8 ld)
__device__ __forceinline__ void store_shared(uint32_t shared_address, uint32_t value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared_address), "r"(value) : "memory");
}
__device__ __forceinline__ uint32_t load_shared(uint32_t shared_address) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(shared_address) : "memory");
  return v;
}

}  // namespace tessera::ptx
