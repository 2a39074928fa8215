// The kernels that there are, each compiled in a file of its own.
#pragma once

#include <cuda_runtime_api.h>

namespace tessera::products {

struct Product;

using Run = cudaError_t(const Product& product, int multiprocessors, cudaStream_t stream);

Run run_plain, run_add, run_plain_stored;  // the last with b stored as [k, n]
Run run_exp;
Run run_over_rows;
Run run_gelu, run_gelu_exact, run_relu;
Run run_gelu_slope, run_gelu_exact_slope, run_relu_slope;
Run run_gelu_fp8, run_gelu_exact_fp8;  // with factors in FP8, as the next
Run run_gelu_slope_fp8, run_gelu_exact_slope_fp8;

}  // namespace tessera::products
