// FP8 values from registers: for Quantise, and for kernels that write a result in FP8 as well (Fp8Output).
//
// Such a kernel is a template over where its FP8 values go, Fp8Values or NoFp8, and stores its result by a
// ResultWriter. With NoFp8 that is store_step() alone.
#pragma once

#include <cuda_fp8.h>

#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/ops.h"

namespace tessera {

__device__ __forceinline__ uint32_t magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }

// The block's largest for its first thread, 0 for the others. Every thread of the block calls it, once.
__device__ __forceinline__ uint32_t largest_of_block(uint32_t largest) {
  __shared__ uint32_t of_warps[kMaxWarps];
  const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x),
            warps = static_cast<int>(blockDim.x * blockDim.y) / kWarp;
  largest = __reduce_max_sync(kWholeWarp, largest);
  if (thread % kWarp == 0) of_warps[thread / kWarp] = largest;
  __syncthreads();
  if (thread != 0) return 0;
  for (int w = 1; w < warps; ++w) largest = max(largest, of_warps[w]);
  return largest;
}

// amax = max(amax, the largest of the block), as bits: integer maxima are the same in any order. Every
// thread of the block calls it, once.
__device__ __forceinline__ void note_largest(uint32_t largest, uint32_t* amax) {
  largest = largest_of_block(largest);
  // It only grows: most blocks find it large enough, and leave it to the others.
  if (largest > 0 && largest > *static_cast<const volatile uint32_t*>(amax)) atomicMax(amax, largest);
}

template <__nv_fp8_interpretation_t kFormat>
__device__ __forceinline__ uint8_t fp8_value_of(float x) {
  return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, kFormat);
}

inline constexpr int kFp8ValuesOfPack = 8;  // one store of 8 bytes

// The FP8 values of x * inverse, the first in the lowest byte, and largest = max(largest, |x|)
template <__nv_fp8_interpretation_t kFormat>
__device__ __forceinline__ uint2 fp8_values_of(const float (&x)[kFp8ValuesOfPack], float inverse,
                                               uint32_t& largest) {
  uint32_t words[2] = {};
#pragma unroll
  for (int i = 0; i < kFp8ValuesOfPack; i += 2) {
    largest = max(largest, max(magnitude(x[i]), magnitude(x[i + 1])));
    const __nv_fp8x2_storage_t pair =
        __nv_cvt_float2_to_fp8x2(make_float2(x[i] * inverse, x[i + 1] * inverse), __NV_SATFINITE, kFormat);
    words[i / 4] |= static_cast<uint32_t>(pair) << (8 * (i % 4));
  }
  return {words[0], words[1]};
}

struct NoFp8 {};
template <__nv_fp8_interpretation_t kFormat>
struct Fp8Values {
  uint8_t* y;
  const float* scale;
  uint32_t* amax;
};

// Writes the results of a thread, and their FP8 values
template <class Fp8>
class ResultWriter;

template <>
class ResultWriter<NoFp8> {
 public:
  __device__ __forceinline__ explicit ResultWriter(NoFp8) {}
  template <class T, int kStep>
  __device__ __forceinline__ void store(T* y, int64_t at, const float (&values)[kStep]) {
    store_step(y + at, values);
  }
  __device__ __forceinline__ void end() {}
};

template <__nv_fp8_interpretation_t kFormat>
class ResultWriter<Fp8Values<kFormat>> {
 public:
  __device__ __forceinline__ explicit ResultWriter(const Fp8Values<kFormat>& fp8_values)
      : fp8_values_(fp8_values), inverse_(1.0f / *fp8_values.scale) {}
  // y[at ...] = values, a pack or one element, and their FP8 values: of the elements as y has them, in bf16
  template <int kStep>
  __device__ __forceinline__ void store(bf16* y, int64_t at, const float (&values)[kStep]) {
    if constexpr (kStep == 1) {
      const bf16 rounded = static_cast<bf16>(values[0]);
      const auto value = static_cast<float>(rounded);
      y[at] = rounded;
      fp8_values_.y[at] = fp8_value_of<kFormat>(value * inverse_);
      largest_ = max(largest_, magnitude(value));
    } else {
      static_assert(kStep == kFp8ValuesOfPack);
      const uint4 raw = pack<bf16>(values);
      float rounded[kStep];
      unpack<bf16>(raw, rounded);
      store_pack(y + at, raw);
      *reinterpret_cast<uint2*>(fp8_values_.y + at) = fp8_values_of<kFormat>(rounded, inverse_, largest_);
    }
  }
  // Every thread of the block calls it, once.
  __device__ __forceinline__ void end() { note_largest(largest_, fp8_values_.amax); }

 private:
  Fp8Values<kFormat> fp8_values_;
  float inverse_;
  uint32_t largest_ = 0;
};

// Calls f with where the FP8 values of a result in T go
template <class T, __nv_fp8_interpretation_t kFormat, class F>
void with_fp8(const Fp8Output& output, F&& f) {
  if constexpr (std::is_same_v<T, bf16>)
    if (output)
      return f(Fp8Values<kFormat>{output.y.data.as<uint8_t>(), output.y.scale.as<float>(),
                                  output.amax.as<uint32_t>()});
  f(NoFp8{});
}

}  // namespace tessera
