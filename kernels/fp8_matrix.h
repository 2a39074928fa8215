// Operands and results in FP8
#pragma once

#include "kernels/base/tensor.h"

namespace tessera {

// A matrix in FP8: its values are data times scale. On CUDA data is e4m3 or e5m2. The CPU computes in fp32:
// there data has the rounded values in fp32, already multiplied by the scale.
struct Fp8Matrix {
  Tensor data;   // like the matrix, or its transpose
  Tensor scale;  // [1] fp32, a power of two
  explicit operator bool() const { return static_cast<bool>(data); }
};
DType fp8_storage(DType format, Device device);  // the dtype of data
Shape transposed_shape(const Shape& matrix);     // [N, C] to [C, N]; of experts, [E, N, C] to [E, C, N]

// An operation can write its result in FP8 as well, rounded as Quantise would round it, with the scale that
// `y` already has. A forward writes e4m3, a backward e5m2. On CUDA only for results in bf16.
struct Fp8Output {
  Fp8Matrix y;  // has the shape of the result
  Tensor amax;  // [1] fp32, becomes max(amax, |the result|), as in Quantise
  explicit operator bool() const { return static_cast<bool>(y); }
};

}  // namespace tessera
