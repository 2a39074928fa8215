// The largest magnitudes of columns, and how many of them are as good as 0. Blocks take a slab of rows each
// and meet by atomics of integers, as magnitudes have the order of their bits: the result is the same in any
// order, and NaN counts as the largest.
#include "kernels/cuda/column_sum.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/workspace.h"

namespace tessera {
namespace {

constexpr int kRowsOfThreads = 8;  // a block is kWarp steps of columns wide and reads this many rows at once
constexpr int kCountThreads = 1024;

template <class T, int kStep>
__global__ __launch_bounds__(kWarp* kRowsOfThreads) void column_maxima_kernel(const T* x, int* maxima,
                                                                              int64_t rows, int64_t columns,
                                                                              int64_t rows_of_slab) {
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x) * kStep;
  const int64_t first = blockIdx.y * rows_of_slab, last = min(rows, first + rows_of_slab);
  int most[kStep] = {};
  if (column < columns) {
#pragma unroll 4
    for (int64_t n = first + threadIdx.y; n < last; n += kRowsOfThreads) {
      float value[kStep];
      load_step(x + n * columns + column, value);
#pragma unroll
      for (int i = 0; i < kStep; ++i) most[i] = max(most[i], __float_as_int(fabsf(value[i])));
    }
  }
  __shared__ int shared[kRowsOfThreads][kStep][kWarp];
#pragma unroll
  for (int i = 0; i < kStep; ++i) shared[threadIdx.y][i][threadIdx.x] = most[i];
  __syncthreads();  // the first row of threads reads what the others wrote
  if (threadIdx.y > 0 || column >= columns) return;
#pragma unroll
  for (int i = 0; i < kStep; ++i) {
    for (int row = 1; row < kRowsOfThreads; ++row) most[i] = max(most[i], shared[row][i][threadIdx.x]);
    atomicMax(maxima + column + i, most[i]);
  }
}

__global__ __launch_bounds__(kCountThreads) void count_dead_kernel(const float* maxima, int64_t columns,
                                                                   float threshold, float* dead) {
  __shared__ float scratch[kMaxWarps][1];
  float count[1] = {};
  for (int64_t i = threadIdx.x; i < columns; i += kCountThreads) count[0] += maxima[i] <= threshold ? 1 : 0;
  block_sum(count, scratch);
  if (threadIdx.x == 0) *dead = count[0];
}

}  // namespace

void CudaBackend::run_op(const DeadUnits& a, const Launch& on) {
  const int64_t rows = a.x.shape[0], columns = a.x.shape[1];
  with_real_type(a.x.dtype, [&]<class T>() {
    const int64_t slabs = cuda::slabs_for(rows, columns, a.x.dtype);
    const auto launch = [&]<int kStep>() {
      const dim3 grid(static_cast<unsigned>(cuda::divide_up(columns, kWarp * kStep)),
                      static_cast<unsigned>(slabs)),
          block(kWarp, kRowsOfThreads);
      column_maxima_kernel<T, kStep><<<grid, block, 0, on.stream>>>(a.x.as<T>(), a.maxima.as<int>(), rows,
                                                                    columns, cuda::divide_up(rows, slabs));
    };
    const bool packs = reinterpret_cast<uintptr_t>(a.x.data) % 16 == 0 && columns % kPackWidth<T> == 0;
    packs ? launch.template operator()<kPackWidth<T>>() : launch.template operator()<1>();
  });
  TESSERA_CUDA_LAUNCHED();
  count_dead_kernel<<<1, kCountThreads, 0, on.stream>>>(a.maxima.as<float>(), columns, DeadUnits::kThreshold,
                                                        a.dead.as<float>());
  TESSERA_CUDA_LAUNCHED();
}

}  // namespace tessera
