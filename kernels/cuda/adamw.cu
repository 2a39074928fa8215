// AdamW: one pass over parameter, master copy, gradient and moments, 28 bytes of traffic a bf16 parameter.
#include <cmath>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/workspace.h"
#include "kernels/op_checks.h"

namespace tessera {
namespace {

constexpr int kThreads = 256;
constexpr int kElements = 4;  // of a thread: one access of 16 bytes to each fp32 array, of 8 to each in bf16

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

// `p` is what the step is computed on: the fp32 master, or the parameter itself if T is float.
template <class T>
__global__ __launch_bounds__(kThreads) void adamw_kernel(T* param, float* p, const T* grad, float* m,
                                                         float* v, const float* grad_norm, int64_t count,
                                                         Update update) {
  const float norm = *grad_norm;
  if (!isfinite(norm)) return;
  const float clip = update.max_norm > 0 ? fminf(1.0f, update.max_norm / (norm + 1e-6f)) : 1.0f;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kElements;
  if (first + kElements <= count) {
    const auto at = [first](float* array) -> float4& { return *reinterpret_cast<float4*>(array + first); };
    float4 p4 = at(p), m4 = at(m), v4 = at(v);
    float g[kElements];
    if constexpr (sizeof(T) == 2) {
      const uint2 raw = *reinterpret_cast<const uint2*>(grad + first);
      const uint32_t words[2] = {raw.x, raw.y};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        g[2 * i] = __uint_as_float(words[i] << 16);
        g[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
      }
    } else {
      load_floats(grad + first, g);
    }
    p4.x = update(p4.x, g[0] * clip, m4.x, v4.x);
    p4.y = update(p4.y, g[1] * clip, m4.y, v4.y);
    p4.z = update(p4.z, g[2] * clip, m4.z, v4.z);
    p4.w = update(p4.w, g[3] * clip, m4.w, v4.w);
    at(p) = p4, at(m) = m4, at(v) = v4;
    if constexpr (sizeof(T) == 2) {
      const __nv_bfloat162 low = __floats2bfloat162_rn(p4.x, p4.y), high = __floats2bfloat162_rn(p4.z, p4.w);
      *reinterpret_cast<uint2*>(param + first) = {*reinterpret_cast<const uint32_t*>(&low),
                                                  *reinterpret_cast<const uint32_t*>(&high)};
    }
    return;
  }
  for (int64_t i = first; i < count; ++i) {
    p[i] = update(p[i], static_cast<float>(grad[i]) * clip, m[i], v[i]);
    if constexpr (sizeof(T) == 2) param[i] = static_cast<T>(p[i]);
  }
}

}  // namespace

void CudaBackend::adamw(const AdamW& a) {
  check_op(a, device());
  const Tensor& p = a.param.dtype == DType::kF32 ? a.param : a.master;
  check_aligned("adamw", {{"param", a.param}, {"master", p}, {"grad", a.grad}, {"m", a.m}, {"v", a.v}});
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
  with_real_type(a.param.dtype, [&]<class T>() {
    adamw_kernel<<<cuda::divide_up(count, kThreads * kElements), kThreads, 0, stream_>>>(
        a.param.as<T>(), p.as<float>(), a.grad.as<T>(), a.m.as<float>(), a.v.as<float>(),
        a.grad_norm.as<float>(), count, update);
  });
  TESSERA_CUDA_LAUNCHED();
}

}  // namespace tessera
