// Loads and stores 16 bytes of a row at a time, as floats.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace tessera::attention {

template <class T>
inline constexpr int kValues = 16 / static_cast<int>(sizeof(T));

__device__ __forceinline__ void load_values(const float* from, float (&to)[4]) {
  const float4 four = *reinterpret_cast<const float4*>(from);
  to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}
__device__ __forceinline__ void load_values(const __nv_bfloat16* from, float (&to)[8]) {
  const uint4 eight = *reinterpret_cast<const uint4*>(from);
  const auto* pairs = reinterpret_cast<const __nv_bfloat162*>(&eight);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = __bfloat1622float2(pairs[i]);
    to[2 * i] = two.x, to[2 * i + 1] = two.y;
  }
}
__device__ __forceinline__ void store_values(float* to, const float (&from)[4]) {
  *reinterpret_cast<float4*>(to) = {from[0], from[1], from[2], from[3]};
}
__device__ __forceinline__ void store_values(__nv_bfloat16* to, const float (&from)[8]) {
  uint4 eight;
  auto* pairs = reinterpret_cast<__nv_bfloat162*>(&eight);
#pragma unroll
  for (int i = 0; i < 4; ++i) pairs[i] = __floats2bfloat162_rn(from[2 * i], from[2 * i + 1]);
  *reinterpret_cast<uint4*>(to) = eight;
}

// Writes the mean of `size` rows, for which a CTA has kMeanThreads threads. Each group of threads adds up
// every so many rows, 16 bytes of a row by a thread. Then the groups' sums are added in order.
inline constexpr int kMeanThreads = 256;
template <class T>
__device__ __forceinline__ void write_mean(const T* first, int64_t stride, int size, int head_dim,
                                           float* mean) {
  constexpr int kWidth = kValues<T>;
  __shared__ float sums[kMeanThreads][kWidth];
  const int me = static_cast<int>(threadIdx.x), lanes = head_dim / kWidth, groups = kMeanThreads / lanes,
            group = me / lanes, lane = me % lanes;
  float sum[kWidth] = {};
  if (group < groups) {
    for (int row = group; row < size; row += groups) {
      float values[kWidth];
      load_values(first + row * stride + lane * kWidth, values);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum[i] += values[i];
    }
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) sums[me][i] = sum[i];
  __syncthreads();
  if (me >= lanes) return;
  for (int other = 1; other < groups; ++other) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum[i] += sums[other * lanes + me][i];
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) mean[me * kWidth + i] = sum[i] / static_cast<float>(size);
}

}  // namespace tessera::attention
