// Rounding to FP8 on the CPU: of Quantise, and of the operations that write a result in FP8 as well.
#pragma once

#include "kernels/ops.h"

namespace tessera::cpu {

// y = x in FP8, by the scale that is there: in fp32, see Fp8Matrix. amax, where there is one, becomes
// max(amax, |x|).
void write_codes(const Tensor& x, DType format, const Fp8Matrix& y, const Tensor& amax);
inline void write_codes(const Tensor& x, DType format, const Fp8Output& output) {
  if (output) write_codes(x, format, output.y, output.amax);
}

}  // namespace tessera::cpu
