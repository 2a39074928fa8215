// The GEMM peak of a device: the speed of its library's largest GEMMs.
#pragma once

#include "kernels/stream.h"

namespace tessera {

// FLOP/s of y = x weight^T on random data: in bf16 on CUDA, with `fp8` in e4m3, and in fp32 on the CPU. The
// GEMM is 8192^3; on a slow device it is as small as 768^3, so that this takes no longer than it must. The
// best of several runs counts. `arena` is on the same device; all its memory is released.
double measure_gemm_flops(const Stream& stream, Arena& arena, bool fp8 = false);

}  // namespace tessera
