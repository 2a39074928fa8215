// The gates of a gated MLP: a value, and the gradients of gate and up.
#pragma once

#include "kernels/base/activation.h"
#include "kernels/cuda/activations.cuh"

namespace tessera::cuda {

struct GateGradients {
  float gate, up;
};
struct SiluGate {
  static __device__ __forceinline__ float forward(float gate, float up) { return gate * sigmoid(gate) * up; }
  // With s = sigmoid(gate): dgate = dy up s (1 + gate (1 - s)),  dup = dy gate s
  static __device__ __forceinline__ GateGradients backward(float dy, float gate, float up) {
    const float s = sigmoid(gate);
    return {dy * up * s * (1.0f + gate * (1.0f - s)), dy * gate * s};
  }
};
struct GeluGate {
  static __device__ __forceinline__ float forward(float gate, float up) { return TanhGelu::value(gate) * up; }
  static __device__ __forceinline__ GateGradients backward(float dy, float gate, float up) {
    return {dy * up * TanhGelu::derivative(gate), dy * TanhGelu::value(gate)};
  }
};
struct ClampedSiluGate {
  using Of = ClampedSilu;
  static __device__ __forceinline__ float forward(float gate, float up) {
    const float g = at_most(gate), u = within(up);
    return (u + 1) * g * sigmoid(Of::kSlope * g);
  }
  // With s = sigmoid(a g): dg = dy (u + 1) s (1 + a g (1 - s)),  du = dy g s
  static __device__ __forceinline__ GateGradients backward(float dy, float gate, float up) {
    const float g = at_most(gate), u = within(up), s = sigmoid(Of::kSlope * g);
    return {gate > Of::kLimit ? 0.0f : dy * (u + 1) * s * (1.0f + Of::kSlope * g * (1.0f - s)),
            fabsf(up) > Of::kLimit ? 0.0f : dy * g * s};
  }

 private:  // NaN stays: fminf() would drop it
  static __device__ __forceinline__ float at_most(float x) { return x > Of::kLimit ? Of::kLimit : x; }
  static __device__ __forceinline__ float within(float x) {
    return x < -Of::kLimit ? -Of::kLimit : at_most(x);
  }
};
template <class F>
void with_gate(Gate gate, F&& f) {
  switch (gate) {
    case Gate::kSilu:
      return f(SiluGate{});
    case Gate::kGelu:
      return f(GeluGate{});
    case Gate::kClampedSilu:
      return f(ClampedSiluGate{});
  }
}

}  // namespace tessera::cuda
