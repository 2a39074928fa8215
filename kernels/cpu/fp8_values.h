// Rounding to FP8 on the CPU: for Quantise, and for the operations that write a result in FP8 as well.
#pragma once

#include "kernels/ops.h"

namespace tessera::cpu {

// Writes x in FP8 to `output`, if there is an output, with the scale that it has. The values are in fp32, see
// Fp8Matrix.
void write_fp8(const Tensor& x, DType format, const Fp8Output& output);

}  // namespace tessera::cpu
