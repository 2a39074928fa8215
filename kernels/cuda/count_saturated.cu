// How many elements an FP8 format cuts off. Each thread looks at some packs and adds what it found by an
// atomic of integers, which gives the same in any order.
#include <algorithm>

#include "kernels/base/fp8_scale.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/pack.cuh"

namespace tessera {
namespace {

constexpr int kCountingThreads = 256;
constexpr int64_t kMostCountingBlocks = 4096;
using CountWord = unsigned long long;  // what the atomics take

template <class T, int kStep>
__global__ __launch_bounds__(kCountingThreads) void count_saturated_kernel(const T* x, int64_t steps,
                                                                           const float* scale, bool is_e4m3,
                                                                           CountWord* count) {
  const float largest = fp8_largest(*scale, is_e4m3);
  CountWord found = 0;
  for (int64_t n = static_cast<int64_t>(blockIdx.x) * kCountingThreads + threadIdx.x; n < steps;
       n += static_cast<int64_t>(gridDim.x) * kCountingThreads) {
    float value[kStep];
    load_step(x + n * kStep, value);
#pragma unroll
    for (int i = 0; i < kStep; ++i) found += fabsf(value[i]) > largest ? 1 : 0;
  }
  if (found > 0) atomicAdd(count, found);
}

}  // namespace

void CudaBackend::run_op(const CountSaturated& a, const Launch& on) {
  const int64_t elements = a.x.numel();
  if (elements == 0) return;
  with_real_type(a.x.dtype, [&]<class T>() {
    const auto launch = [&]<int kStep>() {
      const int64_t steps = elements / kStep;
      const auto blocks =
          static_cast<unsigned>(std::min(kMostCountingBlocks, cuda::divide_up(steps, kCountingThreads)));
      count_saturated_kernel<T, kStep><<<blocks, kCountingThreads, 0, on.stream>>>(
          a.x.as<T>(), steps, a.scale.as<float>(), a.format == DType::kE4M3, a.count.as<CountWord>());
    };
    const bool packs = reinterpret_cast<uintptr_t>(a.x.data) % 16 == 0 && elements % kPackWidth<T> == 0;
    packs ? launch.template operator()<kPackWidth<T>>() : launch.template operator()<1>();
  });
  TESSERA_CUDA_LAUNCHED();
}

}  // namespace tessera
