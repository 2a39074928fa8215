// What the MLP applies to its hidden layer.
#pragma once

#include <array>
#include <cstdint>

namespace tessera {

enum class Activation : uint8_t {
  kGelu,       // the tanh form of Hendrycks and Gimpel, arXiv:1606.08415, as GPT-2 has it
  kGeluExact,  // x Phi(x), by erf
  kRelu,
};
inline constexpr std::array kActivations = {Activation::kGelu, Activation::kGeluExact, Activation::kRelu};

constexpr const char* name_of(Activation activation) {  // as model.mlp says it
  switch (activation) {
    case Activation::kGelu:
      return "gelu";
    case Activation::kGeluExact:
      return "gelu_exact";
    case Activation::kRelu:
      break;
  }
  return "relu";
}

}  // namespace tessera
