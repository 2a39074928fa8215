// What AdamW computes for an element, and how it reads and writes the numbers that it computes with: for the
// kernels of AdamW, of its norms, and of Muon.
#pragma once

#include <math.h>  // isfinite() for device code

#include <cmath>

#include "kernels/base/bf16.h"
#include "kernels/base/master.h"
#include "kernels/base/random.h"
#include "kernels/cuda/norm_of_parts.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/ops.h"

namespace tessera::cuda::adamw {

// Elements of a thread: one access of 16 bytes to an fp32 array, of 8 to one in bf16
constexpr int kElements = 4;

// The step's constants, computed on the host in double.
struct Update {
  float max_norm, keep, rate, second_moment_scale;  // 1 - lr decay; lr / (1 - beta1^t); 1 / sqrt(1 - beta2^t)
  float beta1, gain1, beta2, gain2, epsilon;
  float clip = 1;  // what the gradient is multiplied by: known on the device

  // `kept` is 1 - lr decay, or 1 where there is no decay. That product is rounded by itself: else the
  // compiler fuses it with the difference for some elements of a thread and not for others, and an element's
  // bits depend on its place in the tensor and on the types.
  __device__ float operator()(float p, float unclipped, float& m, float& v, float kept) const {
    const float g = unclipped * clip;
    m = beta1 * m + gain1 * g;
    v = beta2 * v + gain2 * g * g;
    return __fmul_rn(p, kept) - rate * m / (sqrtf(v) * second_moment_scale + epsilon);
  }
};

template <class T>
__device__ __forceinline__ void load_four(const T* from, float (&to)[kElements]) {
  if constexpr (sizeof(T) == 2) {
    const uint2 raw = *reinterpret_cast<const uint2*>(from);
    const uint32_t words[2] = {raw.x, raw.y};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      to[2 * i] = __uint_as_float(words[i] << 16);
      to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  } else {
    load_floats(from, to);
  }
}

template <class M>
__device__ __forceinline__ M moment_of(float value, uint32_t random) {
  if constexpr (sizeof(M) == 2) {
    return __ushort_as_bfloat16(bf16_at_random(__float_as_uint(value), random));
  } else {
    return value;
  }
}

// Rounded at random, as the word of each element says, moved right by `shift`.
template <class M>
__device__ __forceinline__ void store_moments(M* to, const float (&from)[kElements],
                                              const Philox::Words& random, int shift) {
  if constexpr (sizeof(M) == 2) {
    uint32_t halves[kElements];
#pragma unroll
    for (int i = 0; i < kElements; ++i)
      halves[i] = __bfloat16_as_ushort(moment_of<M>(from[i], random[i] >> shift));
    *reinterpret_cast<uint2*>(to) = {halves[0] | halves[1] << 16, halves[2] | halves[3] << 16};
  } else {
    store_floats(to, from);
  }
}

// What the step is computed on: fp32 parameters, or the halves of masters
struct Floats {
  float* p;

  __device__ __forceinline__ void load(int64_t first, float (&to)[kElements]) const {
    load_floats(p + first, to);
  }
  __device__ __forceinline__ void store(int64_t first, const float (&from)[kElements]) const {
    store_floats(p + first, from);
  }
  __device__ __forceinline__ float load_one(int64_t i) const { return p[i]; }
  __device__ __forceinline__ void store_one(int64_t i, float value) const { p[i] = value; }
};
struct Halves {
  uint16_t *weight, *low;

  __device__ __forceinline__ void load(int64_t first, float (&to)[kElements]) const {
    const auto weights = *reinterpret_cast<const ushort4*>(weight + first),
               lows = *reinterpret_cast<const ushort4*>(low + first);
    to[0] = joined(weights.x, lows.x), to[1] = joined(weights.y, lows.y);
    to[2] = joined(weights.z, lows.z), to[3] = joined(weights.w, lows.w);
  }
  __device__ __forceinline__ void store(int64_t first, const float (&from)[kElements]) const {
    SplitMaster split[kElements];
#pragma unroll
    for (int i = 0; i < kElements; ++i) split[i] = split_master(__float_as_uint(from[i]));
    *reinterpret_cast<ushort4*>(weight + first) = {split[0].weight, split[1].weight, split[2].weight,
                                                   split[3].weight};
    *reinterpret_cast<ushort4*>(low + first) = {split[0].low, split[1].low, split[2].low, split[3].low};
  }
  __device__ __forceinline__ float load_one(int64_t i) const { return joined(weight[i], low[i]); }
  __device__ __forceinline__ void store_one(int64_t i, float value) const {
    const SplitMaster split = split_master(__float_as_uint(value));
    weight[i] = split.weight, low[i] = split.low;
  }

 private:
  static __device__ __forceinline__ float joined(uint16_t weight, uint16_t low) {
    return __uint_as_float(master_bits({weight, low}));
  }
};

// The halves of masters, or fp32 parameters
template <class T>
__device__ __forceinline__ auto parameters(void* param, void* low) {
  if constexpr (sizeof(T) == 2)
    return Halves{static_cast<uint16_t*>(param), static_cast<uint16_t*>(low)};
  else
    return Floats{static_cast<float*>(param)};
}

// Whether a step changes anything
__device__ __forceinline__ bool updates(float norm, const float* verdict) {
  return isfinite(norm) && !(verdict && *verdict != static_cast<float>(StepVerdict::kUpdate));
}
// The same; then `update`, of AdamW or Muon, has its clip.
template <class Update>
__device__ __forceinline__ bool begin(Update& update, const float* norms, int64_t norm_count,
                                      const float* verdict) {
  const float norm = norm_of_parts(norms, norm_count);
  if (!updates(norm, verdict)) return false;
  update.clip = update.max_norm > 0 ? fminf(1.0f, update.max_norm / (norm + 1e-6f)) : 1.0f;
  return true;
}

inline Update update_of(const AdamW& a) {
  const double learning_rate = a.learning_rate, beta1 = a.beta1, beta2 = a.beta2;
  const auto step = static_cast<double>(a.step);
  return {.max_norm = static_cast<float>(a.max_norm),
          .keep = static_cast<float>(1 - learning_rate * a.weight_decay),
          .rate = static_cast<float>(learning_rate / (1 - std::pow(beta1, step))),
          .second_moment_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, step))),
          .beta1 = static_cast<float>(beta1),
          .gain1 = static_cast<float>(1 - beta1),
          .beta2 = static_cast<float>(beta2),
          .gain2 = static_cast<float>(1 - beta2),
          .epsilon = static_cast<float>(a.epsilon)};
}

// Calls run<T, G, M>(): the types of the parameters, gradients and moments of a step
template <class Run>
void with_types(const AdamW::Part& like, const Run& run) {
  with_real_type(like.m.dtype, [&]<class M>() {
    if (like.param.dtype == DType::kF32) return run.template operator()<float, float, M>();
    with_real_type(like.grad.dtype, [&]<class G>() { run.template operator()<bf16, G, M>(); });
  });
}

}  // namespace tessera::cuda::adamw
