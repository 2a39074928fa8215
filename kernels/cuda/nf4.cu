// RoundNf4: a warp takes a block of kNf4Block numbers, two a lane, whose codes are a byte. WidenNf4: a thread
// takes eight codes, and looks their values up in shared memory.
#include <algorithm>

#include "kernels/base/nf4.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/workspace.h"

namespace tessera {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kNumbers = 8;  // of a thread that widens
static_assert(kNf4Block == 2 * 32);

template <class T>
__global__ __launch_bounds__(kThreads) void round_nf4_kernel(const T* x, int64_t blocks, uint8_t* codes,
                                                             float* scales) {
  const int64_t block = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (block >= blocks) return;
  const int64_t first = block * kNf4Block + 2 * lane;
  const float a = static_cast<float>(x[first]), b = static_cast<float>(x[first + 1]);
  // The bits of magnitudes have the order of the magnitudes, and NaN has the largest.
  uint32_t largest = max(__float_as_uint(fabsf(a)), __float_as_uint(fabsf(b)));
#pragma unroll
  for (int other = 16; other > 0; other /= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, other));
  const float scale = __uint_as_float(largest), inverse = nf4_inverse(scale);
  codes[block * 32 + lane] = static_cast<uint8_t>(nf4_code(a * inverse) << 4 | nf4_code(b * inverse));
  if (lane == 0) scales[block] = scale;
}

template <class T>
__global__ __launch_bounds__(kThreads) void widen_nf4_kernel(const uint32_t* codes, const float* scales,
                                                             int64_t eights, T* y) {
  __shared__ float values[16];
  if (threadIdx.x < 16) values[threadIdx.x] = nf4_value(threadIdx.x);
  __syncthreads();
  const int64_t eight = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (eight >= eights) return;
  const uint32_t eight_codes = codes[eight];
  const float scale = scales[eight / (kNf4Block / kNumbers)];
  constexpr int kWidth = kPackWidth<T>;
#pragma unroll
  for (int p = 0; p < kNumbers; p += kWidth) {
    float pack[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const int number = p + i, shift = number / 2 * 8 + (number % 2 == 0 ? 4 : 0);
      pack[i] = values[eight_codes >> shift & 15] * scale;
    }
    store_floats(y + eight * kNumbers + p, pack);
  }
}

}  // namespace

void CudaBackend::run_op(const RoundNf4& a, const Launch& on) {
  check_aligned(a.kName, {{"x", a.x}, {"y", a.y.data}});
  const int64_t blocks = a.y.scales.numel();
  with_real_type(a.x.dtype, [&]<class T>() {
    round_nf4_kernel<T><<<static_cast<unsigned>(cuda::divide_up(blocks, kWarps)), kThreads, 0, on.stream>>>(
        a.x.as<T>(), blocks, a.y.data.as<uint8_t>(), a.y.scales.as<float>());
    TESSERA_CUDA_LAUNCHED();
  });
}

void CudaBackend::run_op(const WidenNf4& a, const Launch& on) {
  check_aligned(a.kName, {{"x", a.x.data}, {"y", a.y}});
  const int64_t eights = a.y.numel() / kNumbers;
  with_real_type(a.y.dtype, [&]<class T>() {
    widen_nf4_kernel<T><<<static_cast<unsigned>(cuda::divide_up(eights, kThreads)), kThreads, 0, on.stream>>>(
        a.x.data.as<uint32_t>(), a.x.scales.as<float>(), eights, a.y.as<T>());
    TESSERA_CUDA_LAUNCHED();
  });
}

}  // namespace tessera
