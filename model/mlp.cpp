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
      break;
  }
  fail("a gated MLP has no activation of its own");
}

FusedLinear::Epilogue epilogue_of(Mlp mlp) {
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
  }
  fail("no such MLP");
}

}  // namespace tessera
