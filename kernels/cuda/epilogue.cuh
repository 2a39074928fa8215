// The epilogue of a GEMM of few rows.
#pragma once

#include "kernels/cuda/activations.cuh"
#include "kernels/ops.h"

namespace tessera::cuda {

__device__ __forceinline__ float apply(FusedLinear::Epilogue epilogue, float value, float up) {
  using Epilogue = FusedLinear::Epilogue;
  switch (epilogue) {
    case Epilogue::kNone:
      return value;
    case Epilogue::kGelu:
      return TanhGelu::value(value);
    case Epilogue::kGeluExact:
      return ExactGelu::value(value);
    case Epilogue::kRelu:
      return Relu::value(value);
    case Epilogue::kRelu2:
      return SquaredRelu::value(value);
    case Epilogue::kSwiglu:
      return value * sigmoid(value) * up;
  }
  return value;
}

}  // namespace tessera::cuda
