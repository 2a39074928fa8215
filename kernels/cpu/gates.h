// The gates of a gated MLP: a value and the gradients of both of its inputs.
#pragma once

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

// f with the struct of a gate: a type, so that loops over it become vector code
template <class F>
void with_gate(Gate gate, F&& f) {
  gate == Gate::kSilu ? f(Silu{}) : f(Gelu{});
}

}  // namespace tessera::cpu
