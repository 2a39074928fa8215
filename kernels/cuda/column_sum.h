// Sums over the rows of a matrix, in two steps with a fixed order: each slab of rows writes one row of
// partial sums in fp32, then the rows of the slabs are added one after another.
#pragma once

#include <cuda_runtime.h>

#include "kernels/base/tensor.h"

namespace tessera::cuda {

// partials[s, c] = sum of x[n, c] over the rows of slab s, for x [N, C] bf16 or fp32
void sum_slabs(const Tensor& x, float* partials, int64_t slabs, cudaStream_t stream);

// first[c] += sum over s of partials[s, c], and for longer rows of partials the rest is added to second[c]
void add_slabs(const float* partials, int64_t slabs, const Tensor& first, const Tensor& second,
               cudaStream_t stream);

// The number of slabs: enough to occupy the device, without too many partial sums
int64_t slabs_for(int64_t rows, int64_t columns, DType dtype);

}  // namespace tessera::cuda
