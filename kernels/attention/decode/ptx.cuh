// PTX of the decode kernels, beside that of sm80/: one instruction, one wrapper. Sections: PTX ISA 9.0.
#pragma once

#include <cstdint>

#include "kernels/attention/sm80/ptx.cuh"

namespace tessera::ptx {

// An 8 x 8 matrix of 16-bit elements, of which lane l holds row l/4, columns 2(l%4), +1: transposed
// (9.7.14.5.17 movmatrix)
__device__ __forceinline__ uint32_t transpose_8x8(uint32_t x) {
  uint32_t y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

}  // namespace tessera::ptx
