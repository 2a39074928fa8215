#include "kernels/cuda/column_sum.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/workspace.h"

namespace tessera::cuda {
namespace {

constexpr int kRowsOfThreads = 8;  // a block is kWarp steps of columns wide and reads this many rows at once
constexpr int kUnroll = 8;  // loads in flight for each thread

template <class T, int kStep>
__global__ __launch_bounds__(kWarp* kRowsOfThreads) void sum_slabs_kernel(const T* x, float* partials,
                                                                          int64_t rows, int64_t columns,
                                                                          int64_t rows_of_slab) {
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x) * kStep;
  const int64_t first = blockIdx.y * rows_of_slab, last = min(rows, first + rows_of_slab);
  float sum[kStep] = {};
  if (column < columns) {
#pragma unroll kUnroll
    for (int64_t n = first + threadIdx.y; n < last; n += kRowsOfThreads) {
      float value[kStep];
      load_step(x + n * columns + column, value);
#pragma unroll
      for (int i = 0; i < kStep; ++i) sum[i] += value[i];
    }
  }
  __shared__ float sums[kRowsOfThreads][kStep][kWarp];
#pragma unroll
  for (int i = 0; i < kStep; ++i) sums[threadIdx.y][i][threadIdx.x] = sum[i];
  __syncthreads();  // the first row of threads reads what the others wrote
  if (threadIdx.y > 0 || column >= columns) return;
#pragma unroll
  for (int i = 0; i < kStep; ++i) {
    for (int row = 1; row < kRowsOfThreads; ++row) sum[i] += sums[row][i][threadIdx.x];
    partials[blockIdx.y * columns + column + i] = sum[i];
  }
}

// One block sums kWarp columns; each row of threads takes every kSlabThreads-th slab.
constexpr int kSlabThreads = 32;

template <class T>
__global__ __launch_bounds__(kWarp* kSlabThreads) void add_slabs_kernel(const float* partials, int64_t slabs,
                                                                        T* first, int64_t first_columns,
                                                                        T* second, int64_t columns) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  float sum = 0;
  if (column < columns) {
#pragma unroll kUnroll
    for (int64_t s = threadIdx.y; s < slabs; s += kSlabThreads) sum += partials[s * columns + column];
  }
  __shared__ float parts[kSlabThreads][kWarp];
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();  // the first row of threads reads what the others wrote
  if (threadIdx.y > 0 || column >= columns) return;
  for (int row = 1; row < kSlabThreads; ++row) sum += parts[row][threadIdx.x];
  T* to = column < first_columns ? first + column : second + (column - first_columns);
  *to = static_cast<T>(static_cast<float>(*to) + sum);
}

}  // namespace

int64_t slabs_for(int64_t rows, int64_t columns, DType dtype) {
  const int64_t blocks_wide = divide_up(columns * static_cast<int64_t>(size_of(dtype)), 16 * kWarp);
  const int64_t wanted = divide_up(kMaxSlabs, blocks_wide);
  return std::min(wanted, divide_up(rows, kRowsOfThreads));
}

void sum_slabs(const Tensor& x, float* partials, int64_t slabs, cudaStream_t stream) {
  const int64_t rows = x.shape[0], columns = x.shape[1];
  with_real_type(x.dtype, [&]<class T>() {
    const auto launch = [&]<int kStep>() {
      const dim3 grid(divide_up(columns, kWarp * kStep), slabs), block(kWarp, kRowsOfThreads);
      sum_slabs_kernel<T, kStep>
          <<<grid, block, 0, stream>>>(x.as<T>(), partials, rows, columns, divide_up(rows, slabs));
    };
    const bool packs = reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && columns % kPackWidth<T> == 0;
    packs ? launch.template operator()<kPackWidth<T>>() : launch.template operator()<1>();
  });
  TESSERA_CUDA_LAUNCHED();
}

void add_slabs(const float* partials, int64_t slabs, const Tensor& first, const Tensor& second,
               cudaStream_t stream) {
  const int64_t columns = first.numel() + second.numel();
  with_real_type(first.dtype, [&]<class T>() {
    add_slabs_kernel<<<divide_up(columns, kWarp), dim3(kWarp, kSlabThreads), 0, stream>>>(
        partials, slabs, first.as<T>(), first.numel(), second.as<T>(), columns);
  });
  TESSERA_CUDA_LAUNCHED();
}

}  // namespace tessera::cuda
