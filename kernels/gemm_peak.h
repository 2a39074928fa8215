// The GEMM peak of a device: the speed of its library's largest matrix products.
#pragma once

#include "kernels/stream.h"

namespace tessera {

// FLOP/s of y = x weight^T on random data: bf16 8192^3 on CUDA, fp32 1024^3 on the CPU; the best of several.
// `arena` is on the same device; all memory is released.
double measure_gemm_flops(const Stream& stream, Arena& arena);

}  // namespace tessera
