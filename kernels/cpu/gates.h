// The gates of a gated MLP: a value and the gradients of both of its inputs.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/activations.h"
#include "kernels/base/activation.h"
#include "kernels/cpu/vector_math.h"

namespace tessera::cpu {

struct GateGradients {
  float gate, up;
};

struct Silu {
  static float forward(float gate, float up) { return gate / (1.0f + exp(-gate)) * up; }
  // With s = sigmoid(gate): dgate = dy up s (1 + gate (1 - s)),  dup = dy gate s
  static GateGradients backward(float dy, float gate, float up) {
    const float s = 1.0f / (1.0f + exp(-gate));
    return {dy * up * s * (1.0f + gate * (1.0f - s)), dy * gate * s};
  }
};
struct Gelu {
  using Of = TanhGelu<Math>;
  static float forward(float gate, float up) { return Of::value(gate) * up; }
  static GateGradients backward(float dy, float gate, float up) {
    return {dy * up * Of::derivative(gate), dy * Of::value(gate)};
  }
};
struct ClampedSilu {
  using Of = tessera::ClampedSilu;
  static float forward(float gate, float up) {
    const float g = std::min(gate, Of::kLimit), u = std::clamp(up, -Of::kLimit, Of::kLimit);
    return (u + 1) * g / (1.0f + exp(-Of::kSlope * g));
  }
  // With s = sigmoid(a g): dg = dy (u + 1) s (1 + a g (1 - s)),  du = dy g s
  static GateGradients backward(float dy, float gate, float up) {
    const float g = std::min(gate, Of::kLimit), u = std::clamp(up, -Of::kLimit, Of::kLimit);
    const float s = 1.0f / (1.0f + exp(-Of::kSlope * g));
    return {gate > Of::kLimit ? 0.0f : dy * (u + 1) * s * (1.0f + Of::kSlope * g * (1.0f - s)),
            std::abs(up) > Of::kLimit ? 0.0f : dy * g * s};
  }
};

// Calls f with the struct of a gate. It is a type, so that loops over it become vector code.
template <class F>
void with_gate(Gate gate, F&& f) {
  switch (gate) {
    case Gate::kSilu:
      return f(Silu{});
    case Gate::kGelu:
      return f(Gelu{});
    case Gate::kClampedSilu:
      return f(ClampedSilu{});
  }
}

}  // namespace tessera::cpu
