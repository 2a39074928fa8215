#include "kernels/cuda/column_sum.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/workspace.h"

namespace tessera::cuda {
namespace {

constexpr int kRowsOfThreads = 8;  // a block is kWarp steps of columns wide and reads this many rows at once
constexpr int kUnroll = 8;         // loads in flight for each thread

template <class T, int kStep>
__global__ __launch_bounds__(kWarp* kRowsOfThreads) void sum_slabs_kernel(const T* x, int64_t row,
                                                                          float* partials, int64_t rows,
                                                                          int64_t columns,
                                                                          int64_t rows_of_slab) {
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x) * kStep;
  const int64_t first = blockIdx.y * rows_of_slab, last = min(rows, first + rows_of_slab);
  float sum[kStep] = {};
  if (column < columns) {
#pragma unroll kUnroll
    for (int64_t n = first + threadIdx.y; n < last; n += kRowsOfThreads) {
      float value[kStep];
      load_step(x + n * row + column, value);
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
struct Vectors {
  T* data[3];
  int64_t end[3];  // the column after the last of each

  __device__ __forceinline__ T* at(int64_t column) const {
    if (column < end[0]) return data[0] + column;
    if (column < end[1]) return data[1] + (column - end[0]);
    return data[2] + (column - end[1]);
  }
};

template <class T>
__global__ __launch_bounds__(kWarp* kSlabThreads) void add_slabs_kernel(const float* partials, int64_t slabs,
                                                                        Vectors<T> vectors, bool accumulate) {
  const int64_t columns = vectors.end[2];
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
  T* to = vectors.at(column);
  *to = static_cast<T>(accumulate ? static_cast<float>(*to) + sum : sum);
}

}  // namespace

int64_t slabs_for(int64_t rows, int64_t columns, DType dtype) {
  const int64_t blocks_wide = divide_up(columns * static_cast<int64_t>(size_of(dtype)), 16 * kWarp);
  const int64_t enough = divide_up(kMaxSlabs, blocks_wide);
  return std::min(enough, divide_up(rows, kRowsOfThreads));
}

void sum_slabs(const Tensor& x, int64_t columns, float* partials, int64_t slabs, cudaStream_t stream) {
  const int64_t rows = x.shape[0], row = x.shape[1];
  with_real_type(x.dtype, [&]<class T>() {
    const auto launch = [&]<int kStep>() {
      const dim3 grid(divide_up(columns, kWarp * kStep), slabs), block(kWarp, kRowsOfThreads);
      sum_slabs_kernel<T, kStep>
          <<<grid, block, 0, stream>>>(x.as<T>(), row, partials, rows, columns, divide_up(rows, slabs));
    };
    const bool packs = reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && row % kPackWidth<T> == 0 &&
                       columns % kPackWidth<T> == 0;
    packs ? launch.template operator()<kPackWidth<T>>() : launch.template operator()<1>();
  });
  TESSERA_CUDA_LAUNCHED();
}

void add_slabs(const float* partials, int64_t slabs, const ColumnSums& sums, bool accumulate,
               cudaStream_t stream) {
  with_real_type(sums[0].dtype, [&]<class T>() {
    Vectors<T> vectors;
    int64_t columns = 0;
    for (size_t i = 0; i < sums.size(); ++i) {
      columns += sums[i] ? sums[i].numel() : 0;
      vectors.data[i] = sums[i].as<T>(), vectors.end[i] = columns;
    }
    add_slabs_kernel<<<divide_up(columns, kWarp), dim3(kWarp, kSlabThreads), 0, stream>>>(
        partials, slabs, vectors, accumulate);
  });
  TESSERA_CUDA_LAUNCHED();
}

void sum_rows(const Tensor& x, const Tensor& sum, bool accumulate, void* workspace, cudaStream_t stream) {
  const int64_t columns = sum.numel(), slabs = slabs_for(x.shape[0], columns, x.dtype);
  auto* partials = static_cast<float*>(workspace);
  sum_slabs(x, columns, partials, slabs, stream);
  add_slabs(partials, slabs, {sum}, accumulate, stream);
}

}  // namespace tessera::cuda
