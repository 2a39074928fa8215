// What the MLP applies to its hidden layer.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/base/words.h"

namespace tessera {

enum class Activation : uint8_t {
  kGelu,       // the tanh form of Hendrycks and Gimpel, arXiv:1606.08415, as GPT-2 has it
  kGeluExact,  // x Phi(x), by erf
  kRelu,
  kRelu2,  // max(x, 0)^2: So et al., Primer, arXiv:2109.08668
};
constexpr auto words_of(Activation) {  // of model.mlp
  return std::array{Word{"gelu", Activation::kGelu}, Word{"gelu_exact", Activation::kGeluExact},
                    Word{"relu", Activation::kRelu}, Word{"relu2", Activation::kRelu2}};
}
inline constexpr auto kActivations = values_with_words<Activation>();

// What a gated MLP makes of its gate g and of u, its up projection
enum class Gate : uint8_t {
  kSilu,         // u g / (1 + exp(-g)): SwiGLU
  kGelu,         // u gelu(g), by tanh, as Activation::kGelu: GeGLU
  kClampedSilu,  // (u + 1) g sigmoid(kSlope g); g is cut to at most kLimit, u to +-kLimit: gpt-oss's gate
};
// The numbers of Gate::kClampedSilu (OpenAI, arXiv:2508.10925). Beyond a limit the gradient is 0.
struct ClampedSilu {
  static constexpr float kSlope = 1.702f, kLimit = 7;
};
inline constexpr Gate kAllGates[] = {Gate::kSilu, Gate::kGelu, Gate::kClampedSilu};

}  // namespace tessera
