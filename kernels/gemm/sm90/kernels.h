// The kernels of our GEMMs. The kernels of a file are compiled one after another.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "kernels/gemm/gemm.h"

namespace tessera::gemm {

struct Problem;

inline constexpr const char* kNoKernels =
    "this build has no GEMMs of its own: TESSERA_CUDA_ARCHS must have 90a; configure with "
    "-DTESSERA_CUDA_ARCHS=90a";

using Run = cudaError_t(const Problem& product, int multiprocessors, cudaStream_t stream);

Run run_plain, run_add, run_plain_stored;  // run_plain_stored: b is stored as [k, n]
Run run_exp;
Run run_weight_gradient;
Run run_gelu, run_gelu_exact, run_relu, run_relu2;
Run run_gelu_backward, run_gelu_exact_backward, run_relu_backward, run_relu2_backward;
Run run_gelu_fp8, run_gelu_exact_fp8;  // with FP8 operands
Run run_gelu_backward_fp8, run_gelu_exact_backward_fp8;

cudaError_t run_batch_kernel(std::span<const Gemm> gemms, int multiprocessors, cudaStream_t stream);

}  // namespace tessera::gemm
