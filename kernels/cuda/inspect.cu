// The range of a tensor and its values that are not finite. Each thread looks at some elements and adds
// what it found by atomics of integers, which give the same in any order.
#include <cuda_fp8.h>

#include <algorithm>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/pack.cuh"

namespace tessera {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 4096;

__device__ __forceinline__ float value_of(float x) { return x; }
__device__ __forceinline__ float value_of(bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float value_of(__nv_fp8_e4m3 x) { return static_cast<float>(x); }
__device__ __forceinline__ float value_of(__nv_fp8_e5m2 x) { return static_cast<float>(x); }

__global__ void begin_kernel(Inspected* result) { *result = Inspected{}; }

// Of rows of `row` elements, `columns` from x on in each
template <class T>
__global__ __launch_bounds__(kThreads) void inspect_kernel(const T* x, int64_t first, int64_t row,
                                                           int64_t columns, int64_t count,
                                                           Inspected* result) {
  Inspected found;
  for (int64_t n = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; n < count;
       n += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t i = n / columns * row + first + n % columns;
    const float value = value_of(x[i]);
    if (isfinite(value)) {
      const int32_t order = order_of(__float_as_int(value));
      found.least = min(found.least, order), found.largest = max(found.largest, order);
    } else {
      ++found.bad;
      if (static_cast<uint64_t>(i) < found.first_bad) found.first_bad = static_cast<uint64_t>(i);
    }
  }
  using Word = unsigned long long;  // what the atomics take
  atomicMin(&result->least, found.least);
  atomicMax(&result->largest, found.largest);
  if (found.bad == 0) return;
  atomicAdd(reinterpret_cast<Word*>(&result->bad), static_cast<Word>(found.bad));
  atomicMin(reinterpret_cast<Word*>(&result->first_bad), static_cast<Word>(found.first_bad));
}

}  // namespace

void CudaBackend::run_op(const Inspect& a, const Launch& on) {
  const int64_t all = a.x.numel(), row = a.row == 0 ? std::max<int64_t>(all, 1) : a.row,
                columns = a.row == 0 ? row : a.count, count = all / row * columns;
  auto* result = static_cast<Inspected*>(a.result.data);
  begin_kernel<<<1, 1, 0, on.stream>>>(result);
  TESSERA_CUDA_LAUNCHED();
  if (count == 0) return;
  const auto blocks = static_cast<unsigned>(std::min(kMaxBlocks, cuda::divide_up(count, kThreads)));
  const auto run = [&]<class T>() {
    inspect_kernel<T><<<blocks, kThreads, 0, on.stream>>>(a.x.as<T>(), a.first, row, columns, count, result);
  };
  if (a.x.dtype == DType::kE4M3) {
    run.template operator()<__nv_fp8_e4m3>();
  } else if (a.x.dtype == DType::kE5M2) {
    run.template operator()<__nv_fp8_e5m2>();
  } else {
    with_real_type(a.x.dtype, run);
  }
  TESSERA_CUDA_LAUNCHED();
}

}  // namespace tessera
