// Sums and maxima across a warp or a block, in an order of their own, so that equal input gives equal bits.
#pragma once

#include <cuda_runtime.h>

namespace tessera {

inline constexpr int kWarp = 32;
inline constexpr unsigned kWholeWarp = 0xffffffffu;
inline constexpr int kMaxWarps = 32;  // of a block

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(kWholeWarp, value, offset);
  return value;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    value = fmaxf(value, __shfl_xor_sync(kWholeWarp, value, offset));
  return value;
}

// Every thread of a one-dimensional block of whole warps gets the sums of all. `scratch` is shared memory
// that no thread may touch again before the block has passed another barrier.
template <int kValues>
__device__ __forceinline__ void block_sum(float (&values)[kValues], float (&scratch)[kMaxWarps][kValues]) {
  const int warps = blockDim.x / kWarp, warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
#pragma unroll
  for (int i = 0; i < kValues; ++i) values[i] = warp_sum(values[i]);
  if (warps == 1) return;
  if (lane == 0) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) scratch[warp][i] = values[i];
  }
  __syncthreads();  // without it a warp would read a sum that another has not written
#pragma unroll
  for (int i = 0; i < kValues; ++i) values[i] = 0;
  for (int w = 0; w < warps; ++w) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) values[i] += scratch[w][i];
  }
}

}  // namespace tessera
