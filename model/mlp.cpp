#include "model/mlp.h"

#include "kernels/base/check.h"

namespace tessera {
Activation activation_of(Mlp mlp) {
  switch (mlp) {
    case Mlp::kGelu:
      return Activation::kGelu;
    case Mlp::kGeluExact:
      return Activation::kGeluExact;
    case Mlp::kRelu:
      return Activation::kRelu;
    case Mlp::kRelu2:
      return Activation::kRelu2;
    case Mlp::kSwiglu:
    case Mlp::kGeglu:
    case Mlp::kClampedSwiglu:
      break;
  }
  fail("a gated MLP has no activation of its own");
}

Gate gate_of(Mlp mlp) {
  check(is_gated(mlp), "the MLP is not gated");
  return mlp == Mlp::kSwiglu ? Gate::kSilu : mlp == Mlp::kGeglu ? Gate::kGelu : Gate::kClampedSilu;
}

std::optional<FusedLinear::Epilogue> epilogue_of(Mlp mlp) {
  switch (mlp) {
    case Mlp::kGelu:
      return FusedLinear::Epilogue::kGelu;
    case Mlp::kGeluExact:
      return FusedLinear::Epilogue::kGeluExact;
    case Mlp::kRelu:
      return FusedLinear::Epilogue::kRelu;
    case Mlp::kRelu2:
      return FusedLinear::Epilogue::kRelu2;
    case Mlp::kSwiglu:
      return FusedLinear::Epilogue::kSwiglu;
    case Mlp::kGeglu:
    case Mlp::kClampedSwiglu:
      break;
  }
  return {};
}

}  // namespace tessera
