// Sums over the rows of a matrix, in two steps with a fixed order: each slab of rows writes one row of
// partial sums in fp32, then the rows of the slabs are added one after another.
#pragma once

#include <cuda_runtime.h>

#include <array>

#include "kernels/base/tensor.h"

namespace tessera::cuda {

// partials[s, c] = sum of x[n, c] over the rows of slab s, for the first columns of x [N, C], bf16 or fp32
void sum_slabs(const Tensor& x, int64_t columns, float* partials, int64_t slabs, cudaStream_t stream);

// Up to three vectors; all but the first may be none. Their elements, one vector after the other, are the
// columns of the partials. The sum of a column over the slabs is added to its element, or without
// `accumulate` replaces it.
using ColumnSums = std::array<Tensor, 3>;
void add_slabs(const float* partials, int64_t slabs, const ColumnSums& sums, bool accumulate,
               cudaStream_t stream);

// sum += the sum of the rows of x, over as many columns as `sum` has; without `accumulate` it is replaced.
// The workspace of kGemmWorkspaceBytes has room for partial sums of any width.
void sum_rows(const Tensor& x, const Tensor& sum, bool accumulate, void* workspace, cudaStream_t stream);

// The number of slabs: enough to occupy the device, without too many partial sums
int64_t slabs_for(int64_t rows, int64_t columns, DType dtype);

}  // namespace tessera::cuda
