// The functions of a hidden layer, and their slopes.
#pragma once

#include "kernels/base/activation.h"

namespace tessera::cuda {

// GELU in its tanh form, y = x (1 + tanh u) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3).
struct TanhGelu {
  static constexpr float kSqrtTwoOverPi = 0.7978845608028654f, kCubic = 0.044715f;
  static __device__ __forceinline__ float argument(float x) {
    return kSqrtTwoOverPi * (x + kCubic * x * x * x);
  }
  static __device__ __forceinline__ float value(float x) { return 0.5f * x * (1 + tanhf(argument(x))); }
  // (1 + t) / 2 + x (1 - t^2) u' / 2 with t = tanh u
  static __device__ __forceinline__ float slope(float x) {
    const float t = tanhf(argument(x));
    const float du = kSqrtTwoOverPi * (1 + 3 * kCubic * x * x);
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * du;
  }
};

// x Phi(x), and Phi(x) + x phi(x)
struct ExactGelu {
  static constexpr float kDensity = 0.3989422804014327f;  // 1 / sqrt(2 pi)
  static __device__ __forceinline__ float value(float x) { return x * normcdff(x); }
  static __device__ __forceinline__ float slope(float x) {
    return normcdff(x) + x * kDensity * expf(-0.5f * x * x);
  }
};

struct Relu {
  static __device__ __forceinline__ float value(float x) { return x < 0 ? 0 : x; }
  static __device__ __forceinline__ float slope(float x) { return x > 0 ? 1 : 0; }
};

// 1 / (1 + exp(-g)), to a few units in the last place. Far below 0 the exponential is infinite, and this 0.
__device__ __forceinline__ float sigmoid(float g) { return __fdividef(1.0f, 1.0f + __expf(-g)); }

// Calls f with the struct of an activation.
template <class F>
void with_activation(Activation activation, F&& f) {
  switch (activation) {
    case Activation::kGelu:
      return f(TanhGelu{});
    case Activation::kGeluExact:
      return f(ExactGelu{});
    case Activation::kRelu:
      return f(Relu{});
  }
}

}  // namespace tessera::cuda
