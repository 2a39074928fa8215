// The practical ceiling of a device: how fast its library multiplies large matrices.
#pragma once

#include "kernels/stream.h"

namespace tessera {

// FLOP/s of y = x weight^T on random data: bf16 8192^3 on CUDA, fp32 1024^3 on the CPU; the best of several.
// The arena is the device's and is left as it was.
double measure_gemm_flops(const Stream& stream, Arena& arena);

}  // namespace tessera
