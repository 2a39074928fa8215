// How the CTAs of this folder share a row of kHeadDim elements: kLanes neighbouring threads hold eight each,
// so that a row is read in pieces of 16 bytes, and kGroups rows are at hand at a time.
#pragma once

#include <cuda_bf16.h>

#include "kernels/attention/common/launch.cuh"
#include "kernels/attention/common/tensors.h"

namespace tessera::attention::row {

using bf16 = __nv_bfloat16;

inline constexpr int kThreads = 128, kWarps = kThreads / 32;

template <int kHeadDim>
inline constexpr int kLanes = kHeadDim / 8;
template <int kHeadDim>
inline constexpr int kGroups = kThreads / kLanes<kHeadDim>;

struct Eight {
  float at[8] = {};

  __device__ static Eight load(const bf16* from) {
    const uint4 raw = *reinterpret_cast<const uint4*>(from);
    Eight x;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162*>(&raw)[i]);
      x.at[2 * i] = two.x;
      x.at[2 * i + 1] = two.y;
    }
    return x;
  }
  __device__ void add(float factor, const Eight& x) {
#pragma unroll
    for (int i = 0; i < 8; ++i) at[i] = fmaf(factor, x.at[i], at[i]);
  }
};

// x y^T of two rows, the same in every lane. All lanes of a warp must call it together.
template <int kHeadDim>
__device__ float dot(const Eight& x, const Eight& y) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) sum = fmaf(x.at[i], y.at[i], sum);
#pragma unroll
  for (int other = kLanes<kHeadDim> / 2; other > 0; other /= 2) sum += __shfl_xor_sync(~0u, sum, other);
  return sum;
}

// The largest, or the sum, of a value over the CTA, the same in every thread
template <class Combine>
__device__ float across(float x, Combine combine) {
  __shared__ float of_warp[kWarps];
#pragma unroll
  for (int other = 16; other > 0; other /= 2) x = combine(x, __shfl_xor_sync(~0u, x, other));
  __syncthreads();  // of_warp may still be read from the last time
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
  __syncthreads();  // every thread reads what each warp wrote
  for (int w = 0; w < kWarps; ++w) x = w == 0 ? of_warp[0] : combine(x, of_warp[w]);
  return x;
}

// Adds up what the groups hold of a row, and writes the sum times `factor`.
template <int kHeadDim>
__device__ void store_sum(Eight x, bf16* to, float factor) {
  __shared__ float of_warp[kWarps][kHeadDim];
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
#pragma unroll
    for (int other = kLanes<kHeadDim>; other < 32; other *= 2)
      x.at[i] += __shfl_xor_sync(~0u, x.at[i], other);
  }
  __syncthreads();  // of_warp may still be read from the last time
  if (lane < kLanes<kHeadDim>) {
#pragma unroll
    for (int i = 0; i < 8; ++i) of_warp[threadIdx.x / 32][8 * lane + i] = x.at[i];
  }
  __syncthreads();  // a thread reads what each warp wrote
  if (threadIdx.x >= kHeadDim) return;
  float sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += of_warp[w][threadIdx.x];
  to[threadIdx.x] = __float2bfloat16(sum * factor);
}

}  // namespace tessera::attention::row
