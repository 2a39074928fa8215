// The gates of a gated MLP: a value, and the gradients of gate and up.
#pragma once

#include "kernels/base/activation.h"
#include "kernels/cuda/activations.cuh"

namespace tessera::cuda {

struct GateGradients {
  float gate, up;
};
struct SiluGate {
  static __device__ __forceinline__ float value(float gate) { return gate * sigmoid(gate); }
  // With s = sigmoid(gate): dgate = dy up s (1 + gate (1 - s)),  dup = dy gate s
  static __device__ __forceinline__ GateGradients backward(float dy, float gate, float up) {
    const float s = sigmoid(gate);
    return {dy * up * s * (1.0f + gate * (1.0f - s)), dy * gate * s};
  }
};
struct GeluGate {
  static __device__ __forceinline__ float value(float gate) { return TanhGelu::value(gate); }
  static __device__ __forceinline__ GateGradients backward(float dy, float gate, float up) {
    return {dy * up * TanhGelu::derivative(gate), dy * TanhGelu::value(gate)};
  }
};
template <class F>
void with_gate(Gate gate, F&& f) {
  gate == Gate::kSilu ? f(SiluGate{}) : f(GeluGate{});
}

}  // namespace tessera::cuda
