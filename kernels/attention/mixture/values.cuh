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

}  // namespace tessera::attention
