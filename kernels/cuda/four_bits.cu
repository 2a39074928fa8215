// RoundToFourBits: a thread takes two numbers of a block, whose codes are a byte. WidenFourBits: a thread
// takes eight codes at a time, and looks their values up in shared memory. RoundScales: first a CTA computes
// the mean of each matrix, then a CTA rounds each group.
#include <algorithm>

#include "kernels/base/four_bits.h"
#include "kernels/base/small_scales.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/workspace.h"

namespace tessera {
namespace {

// A thread that widens takes kNumbers successive numbers, kEights times, kThreads x kNumbers numbers apart.
constexpr int kThreads = 256, kNumbers = 8, kEights = 4, kWidened = kEights * kThreads;

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

// The scale of a block, for a thread that widens
template <class Format>
struct PlainScales {
  const typename Format::Scale* scales;
  ScalePlaces<Format> places;
  __device__ float of(int64_t block) const { return Format::factor(scales[places.of(block)]); }
};

struct SmallScaleValues {
  float of_code[256];
};
constexpr SmallScaleValues small_scale_values() {
  SmallScaleValues values{};
  for (int code = 0; code < 256; ++code) values.of_code[code] = small_scale_value(code);
  return values;
}
__constant__ const SmallScaleValues kSmallScaleValues = small_scale_values();

struct SmallScales {
  const float* words;
  SmallScalePlaces places;
  __device__ float of(int64_t block) const { return places.scale(words, kSmallScaleValues.of_code, block); }
};

// A thread reads all its codes and scales before it writes.
template <class Format, class T, class Scales>
__global__ __launch_bounds__(kThreads) void widen_kernel(const uint32_t* codes, Scales scales, int64_t eights,
                                                         T* y) {
  __shared__ float values[16];
  if (threadIdx.x < 16) values[threadIdx.x] = Format::value(threadIdx.x);
  __syncthreads();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kWidened + threadIdx.x;
  uint32_t eight_codes[kEights];
  float scale[kEights];
#pragma unroll
  for (int e = 0; e < kEights; ++e) {
    const int64_t eight = first + e * kThreads;
    const bool has = eight < eights;
    eight_codes[e] = has ? codes[eight] : 0;
    scale[e] = has ? scales.of(eight / (Format::kBlock / kNumbers)) : 0;
  }
  constexpr int kWidth = kPackWidth<T>;
#pragma unroll
  for (int e = 0; e < kEights; ++e) {
    const int64_t eight = first + e * kThreads;
    if (eight >= eights) continue;
#pragma unroll
    for (int p = 0; p < kNumbers; p += kWidth) {
      float pack[kWidth];
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const int number = p + i,
                  shift = number / 2 * 8 + (number % 2 == 0 ? Format::kEvenShift : Format::kOddShift);
        pack[i] = values[eight_codes[e] >> shift & 15] * scale[e];
      }
      store_floats(y + eight * kNumbers + p, pack);
    }
  }
}

// A CTA for each matrix, a thread for each lane
__global__ __launch_bounds__(kMeanLanes) void mean_kernel(const float* x, SmallScalePlaces places,
                                                          float* means) {
  __shared__ double sums[kMeanLanes];
  const int m = static_cast<int>(blockIdx.x);
  const int64_t first = places.first[m], end = places.first[m + 1];
  double of_lane = 0;
  for (int64_t i = first + threadIdx.x; i < end; i += kMeanLanes) of_lane += static_cast<double>(x[i]);
  sums[threadIdx.x] = of_lane;
  __syncthreads();
  if (threadIdx.x > 0) return;
  double sum = 0;
  for (const double lane : sums) sum += lane;
  means[m] = static_cast<float>(sum / static_cast<double>(end - first));
}

// A CTA for each group, a thread for each scale
__global__ __launch_bounds__(kScaleGroup) void round_scales_kernel(const float* x, SmallScalePlaces places,
                                                                   float* words) {
  __shared__ float values[256];
  __shared__ uint32_t largest;
  values[threadIdx.x] = small_scale_value(static_cast<int>(threadIdx.x));
  if (threadIdx.x == 0) largest = 0;
  __syncthreads();
  const int64_t group = blockIdx.x;
  const int m = static_cast<int>(group >= places.groups[1]) + static_cast<int>(group >= places.groups[2]);
  const int64_t scale = places.first[m] + (group - places.groups[m]) * kScaleGroup + threadIdx.x;
  const bool has = scale < places.first[m + 1];
  const float from_mean = has ? x[scale] - words[places.means_at() + m] : 0;
  atomicMax(&largest, __float_as_uint(fabsf(from_mean)));  // magnitudes have the order of their bits
  __syncthreads();
  if (threadIdx.x == 0) words[places.largest_at() + group] = __uint_as_float(largest);
  if (has)
    reinterpret_cast<unsigned char*>(words)[scale] =
        static_cast<unsigned char>(small_scale_code(values, from_mean, __uint_as_float(largest)));
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

void CudaBackend::run_op(const RoundScales& a, const Launch& on) {
  const SmallScalePlaces places(a.scales);
  auto* words = a.y.as<float>();
  TESSERA_CUDA(
      cudaMemsetAsync(words, 0, static_cast<size_t>(places.largest_at()) * sizeof(float), on.stream));
  mean_kernel<<<static_cast<unsigned>(places.matrices), kMeanLanes, 0, on.stream>>>(
      a.x.as<float>(), places, words + places.means_at());
  TESSERA_CUDA_LAUNCHED();
  round_scales_kernel<<<static_cast<unsigned>(places.groups[kMostMatrices]), kScaleGroup, 0, on.stream>>>(
      a.x.as<float>(), places, words);
  TESSERA_CUDA_LAUNCHED();
}

void CudaBackend::run_op(const WidenFourBits& a, const Launch& on) {
  check_aligned(a.kName, {{"x", a.x.data}, {"y", a.y}});
  const int64_t eights = a.y.numel() / kNumbers, columns = a.y.shape[1];
  const auto ctas = static_cast<unsigned>(cuda::divide_up(eights, kWidened));
  const auto widen = [&]<class Format>(const auto& scales) {
    with_real_type(a.y.dtype, [&]<class T>() {
      widen_kernel<Format>
          <<<ctas, kThreads, 0, on.stream>>>(a.x.data.as<uint32_t>(), scales, eights, a.y.as<T>());
      TESSERA_CUDA_LAUNCHED();
    });
  };
  if (a.x.has_small_scales())
    return widen.template operator()<Nf4>(
        SmallScales{a.x.scales.as<float>(), SmallScalePlaces(scales_of_each(a.x.small_scales, columns))});
  with_four_bits(a.x.format, [&]<class Format>() {
    widen.template operator()<Format>(
        PlainScales<Format>{a.x.scales.as<typename Format::Scale>(), ScalePlaces<Format>(columns)});
  });
}

}  // namespace tessera
