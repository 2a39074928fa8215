// PTX of the decode kernels, beside that of sm80/: one instruction, one wrapper. Sections: PTX ISA 9.0.
#pragma once

#include <cstdint>

#include "kernels/attention/sm80/ptx.cuh"

namespace tessera::attention::ptx {

// An 8 x 8 matrix of 16-bit elements, of which lane l holds row l/4, columns 2(l%4), +1: transposed
// (9.7.14.5.17 movmatrix)
__device__ __forceinline__ uint32_t transpose_8x8(uint32_t x) {
  uint32_t y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// The next kernel of the stream may be started, if it asked to be, and waits at wait_for_previous_kernel()
// until this one is done. Before 9.0 there is no such thing, and nothing happens (9.7.13.13 griddepcontrol)
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace tessera::attention::ptx
