// Products of bf16 that were loaded 16 bytes at a time.
#pragma once

#include <cuda_bf16.h>

namespace tessera::attention {

// The sum of products of eight pairs of bf16
__device__ __forceinline__ float dot8(uint4 x, uint4 y) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 a = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162*>(&x)[i]);
    const float2 b = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162*>(&y)[i]);
    sum = fmaf(a.x, b.x, fmaf(a.y, b.y, sum));
  }
  return sum;
}

}  // namespace tessera::attention
