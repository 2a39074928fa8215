// The GEMM peak of a device: the speed of its library's largest GEMMs.
#pragma once

#include "kernels/stream.h"

namespace tessera {

// FLOP/s of y = x weight^T on random data, in bf16 on CUDA, fp32 on the CPU; with `fp8` in e4m3.
// The GEMM is 8192^3, on a slow device as small as 768^3, so that it takes no longer than it must. The best
// of several counts. `arena` is on the same device; all memory is released.
double measure_gemm_flops(const Stream& stream, Arena& arena, bool fp8 = false);

}  // namespace tessera
