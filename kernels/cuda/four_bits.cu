// RoundToFourBits: a thread takes two numbers of a block, whose codes are a byte. WidenFourBits: a thread
// takes eight codes, and looks their values up in shared memory.
#include <algorithm>

#include "kernels/base/four_bits.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/workspace.h"

namespace tessera {
namespace {

constexpr int kThreads = 256, kNumbers = 8;  // of a thread that widens

template <class Format, class T>
__global__ __launch_bounds__(kThreads) void round_kernel(const T* x, int64_t pairs, uint8_t* codes,
                                                         typename Format::Scale* scales,
                                                         ScalePlaces<Format> places) {
  constexpr int kPairs = Format::kBlock / 2;  // of a block, neighbouring lanes
  static_assert(32 % kPairs == 0);
  const int64_t pair = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const bool has = pair < pairs;
  const float a = has ? static_cast<float>(x[2 * pair]) : 0,
              b = has ? static_cast<float>(x[2 * pair + 1]) : 0;
  // The bits of magnitudes have the order of the magnitudes, and NaN has the largest.
  uint32_t largest = max(__float_as_uint(fabsf(a)), __float_as_uint(fabsf(b)));
#pragma unroll
  for (int other = kPairs / 2; other > 0; other /= 2)
    largest = max(largest, __shfl_xor_sync(~0u, largest, other));
  if (!has) return;
  const typename Format::Scale scale = Format::scale(largest);
  const float inverse = Format::inverse(scale);
  codes[pair] = static_cast<uint8_t>(Format::code(a * inverse) << Format::kEvenShift |
                                     Format::code(b * inverse) << Format::kOddShift);
  if (pair % kPairs == 0) scales[places.of(pair / kPairs)] = scale;
}

template <class Format, class T>
__global__ __launch_bounds__(kThreads) void widen_kernel(const uint32_t* codes,
                                                         const typename Format::Scale* scales,
                                                         ScalePlaces<Format> places, int64_t eights, T* y) {
  __shared__ float values[16];
  if (threadIdx.x < 16) values[threadIdx.x] = Format::value(threadIdx.x);
  __syncthreads();
  const int64_t eight = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (eight >= eights) return;
  const uint32_t eight_codes = codes[eight];
  const float scale = Format::factor(scales[places.of(eight / (Format::kBlock / kNumbers))]);
  constexpr int kWidth = kPackWidth<T>;
#pragma unroll
  for (int p = 0; p < kNumbers; p += kWidth) {
    float pack[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const int number = p + i,
                shift = number / 2 * 8 + (number % 2 == 0 ? Format::kEvenShift : Format::kOddShift);
      pack[i] = values[eight_codes >> shift & 15] * scale;
    }
    store_floats(y + eight * kNumbers + p, pack);
  }
}

unsigned ctas_of(int64_t threads) { return static_cast<unsigned>(cuda::divide_up(threads, kThreads)); }

}  // namespace

void CudaBackend::run_op(const RoundToFourBits& a, const Launch& on) {
  check_aligned(a.kName, {{"x", a.x}, {"y", a.y.data}});
  const int64_t pairs = a.x.numel() / 2;
  with_four_bits(a.y.format, [&]<class Format>() {
    with_real_type(a.x.dtype, [&]<class T>() {
      round_kernel<Format, T><<<ctas_of(pairs), kThreads, 0, on.stream>>>(
          a.x.as<T>(), pairs, a.y.data.as<uint8_t>(), a.y.scales.as<typename Format::Scale>(),
          ScalePlaces<Format>(a.x.shape[1]));
      TESSERA_CUDA_LAUNCHED();
    });
  });
}

void CudaBackend::run_op(const WidenFourBits& a, const Launch& on) {
  check_aligned(a.kName, {{"x", a.x.data}, {"y", a.y}});
  const int64_t eights = a.y.numel() / kNumbers;
  with_four_bits(a.x.format, [&]<class Format>() {
    with_real_type(a.y.dtype, [&]<class T>() {
      widen_kernel<Format, T><<<ctas_of(eights), kThreads, 0, on.stream>>>(
          a.x.data.as<uint32_t>(), a.x.scales.as<typename Format::Scale>(), ScalePlaces<Format>(a.y.shape[1]),
          eights, a.y.as<T>());
      TESSERA_CUDA_LAUNCHED();
    });
  });
}

}  // namespace tessera
