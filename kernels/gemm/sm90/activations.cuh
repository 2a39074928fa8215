// The activations of an epilogue: those of kernels/activations.h in few instructions.
#pragma once

#include "kernels/activations.h"
#include "kernels/base/ptx.cuh"

namespace tessera::gemm {

struct FastMath {
  static __device__ __forceinline__ float exp2(float x) { return ptx::exp2(x); }
  static __device__ __forceinline__ float reciprocal(float x) { return ptx::reciprocal(x); }
};
using TanhGelu = FastTanhGelu<FastMath>;
using ExactGelu = FastExactGelu<FastMath>;
struct NoActivation {};

}  // namespace tessera::gemm
