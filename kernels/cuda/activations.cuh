// The activations of kernels/activations.h with CUDA's functions, and the sigmoid of SwiGLU.
#pragma once

#include "kernels/activations.h"

namespace tessera::cuda {

struct Math {
  static __device__ __forceinline__ float tanh(float x) { return tanhf(x); }
  static __device__ __forceinline__ float exp(float x) { return expf(x); }
  static __device__ __forceinline__ float normal_cdf(float x) { return normcdff(x); }
};
using TanhGelu = tessera::TanhGelu<Math>;
using ExactGelu = tessera::ExactGelu<Math>;

// 1 / (1 + exp(-g)), to a few units in the last place. Far below 0 the exponential is infinite, and this 0.
__device__ __forceinline__ float sigmoid(float g) { return __fdividef(1.0f, 1.0f + __expf(-g)); }

}  // namespace tessera::cuda
