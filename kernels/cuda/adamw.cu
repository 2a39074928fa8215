// AdamW: one pass over parameter, master copy, gradient and moments. A bf16 parameter is 28 bytes of traffic,
// with bf16 moments 20.
#include <cmath>

#include "kernels/base/bf16.h"
#include "kernels/base/random.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/workspace.h"

namespace tessera {
namespace {

constexpr int kThreads = 256;
constexpr int kElements = 4;  // of a thread: one access of 16 bytes to an fp32 array, of 8 to one in bf16

// The step's constants, computed on the host in double.
struct Update {
  float max_norm, keep, rate, second_moment_scale;  // 1 - lr decay; lr / (1 - beta1^t); 1 / sqrt(1 - beta2^t)
  float beta1, gain1, beta2, gain2, epsilon;

  __device__ float operator()(float p, float g, float& m, float& v) const {
    m = beta1 * m + gain1 * g;
    v = beta2 * v + gain2 * g * g;
    return p * keep - rate * m / (sqrtf(v) * second_moment_scale + epsilon);
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

// As the word of each element rounds it, moved right by `shift`.
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

// The root of the sum of squares. In double, so that no square overflows or vanishes.
__device__ __forceinline__ float norm_of_parts(const float* norms, int64_t parts) {
  if (parts == 1) return *norms;
  double squares = 0;
  for (int64_t part = 0; part < parts; ++part) squares += static_cast<double>(norms[part]) * norms[part];
  return static_cast<float>(sqrt(squares));
}

// `p` is what the step is computed on: the fp32 master, or the parameter itself if T is float.
template <class T, class G, class M>
__global__ __launch_bounds__(kThreads) void adamw_kernel(T* param, float* p, const G* grad, M* m, M* v,
                                                         const float* norms, int64_t parts, int64_t count,
                                                         Update update, Philox random,
                                                         int64_t first_element) {
  const float norm = norm_of_parts(norms, parts);
  if (!isfinite(norm)) return;
  const float clip = update.max_norm > 0 ? fminf(1.0f, update.max_norm / (norm + 1e-6f)) : 1.0f;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kElements;
  if (first >= count) return;
  Philox::Words words{};
  if constexpr (sizeof(M) == 2)
    words = random.bits(static_cast<uint64_t>((first_element + first) / kElements));
  if (first + kElements <= count) {
    float p4[kElements], g4[kElements], m4[kElements], v4[kElements];
    load_four(p + first, p4), load_four(m + first, m4), load_four(v + first, v4);
    load_four(grad + first, g4);
#pragma unroll
    for (int i = 0; i < kElements; ++i) p4[i] = update(p4[i], g4[i] * clip, m4[i], v4[i]);
    store_floats(p + first, p4);
    store_moments(m + first, m4, words, 0);
    store_moments(v + first, v4, words, 16);
    if constexpr (sizeof(T) == 2) {
      const __nv_bfloat162 low = __floats2bfloat162_rn(p4[0], p4[1]),
                           high = __floats2bfloat162_rn(p4[2], p4[3]);
      *reinterpret_cast<uint2*>(param + first) = {*reinterpret_cast<const uint32_t*>(&low),
                                                  *reinterpret_cast<const uint32_t*>(&high)};
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    const int64_t at = first + i;
    if (at >= count) return;
    float m32 = static_cast<float>(m[at]), v32 = static_cast<float>(v[at]);
    p[at] = update(p[at], static_cast<float>(grad[at]) * clip, m32, v32);
    m[at] = moment_of<M>(m32, words[i]), v[at] = moment_of<M>(v32, words[i] >> 16);
    if constexpr (sizeof(T) == 2) param[at] = static_cast<T>(p[at]);
  }
}

}  // namespace

void CudaBackend::run_op(const AdamW& a, const Launch& on) {
  const Tensor& p = a.param.dtype == DType::kF32 ? a.param : a.master;
  check_aligned(a.kName, {{"param", a.param}, {"master", p}, {"grad", a.grad}, {"m", a.m}, {"v", a.v}});
  const double learning_rate = a.learning_rate, beta1 = a.beta1, beta2 = a.beta2, decay = a.weight_decay;
  const auto step = static_cast<double>(a.step);
  const Update update{.max_norm = static_cast<float>(a.max_norm),
                      .keep = static_cast<float>(1 - learning_rate * decay),
                      .rate = static_cast<float>(learning_rate / (1 - std::pow(beta1, step))),
                      .second_moment_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, step))),
                      .beta1 = static_cast<float>(beta1),
                      .gain1 = static_cast<float>(1 - beta1),
                      .beta2 = static_cast<float>(beta2),
                      .gain2 = static_cast<float>(1 - beta2),
                      .epsilon = static_cast<float>(a.epsilon)};
  const int64_t count = a.param.numel();
  if (count == 0) return;
  const Philox random(a.random_key, static_cast<uint64_t>(a.step));
  const auto launch = [&]<class T, class G, class M>() {
    adamw_kernel<<<cuda::divide_up(count, kThreads * kElements), kThreads, 0, on.stream>>>(
        a.param.as<T>(), p.as<float>(), a.grad.as<G>(), a.m.as<M>(), a.v.as<M>(), a.grad_norm.as<float>(),
        a.grad_norm.numel(), count, update, random, a.first_element);
  };
  with_real_type(a.m.dtype, [&]<class M>() {
    if (a.param.dtype == DType::kF32) return launch.template operator()<float, float, M>();
    with_real_type(a.grad.dtype, [&]<class G>() { launch.template operator()<bf16, G, M>(); });
  });
  TESSERA_CUDA_LAUNCHED();
}

}  // namespace tessera
