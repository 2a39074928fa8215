// Cross entropy. A block copies one row of logits into shared memory, with all copies in flight at once.
// It computes the maximum and the sum of exponentials as the parts arrive (online softmax: Milakov and
// Gimelshein, arXiv:1805.02867), then computes the gradient from shared memory and writes it over the row:
// memory sees one read and one write of each logit. What does not fit, the end of a row of more than
// 100,000 logits in bf16, is read twice; the second read finds most of it in the L2 cache.
//
// The gradient in FP8, where it is asked for, is written with it. Logits with a cap are capped whenever they
// are unpacked, in both passes.
#include <cuda_pipeline.h>

#include "kernels/base/ptx.cuh"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/fp8_values.cuh"
#include "kernels/logit_cap.h"
#include "kernels/workspace.h"

namespace tessera {
namespace {

constexpr int kThreads = 512;       // where several rows fit into a multiprocessor
constexpr int kMostThreads = 1024;  // where one row fills it
constexpr int kStages = 4;          // parts of a row that are waited for one after another
constexpr float kLog2e = 1.4426950408889634f;

// exp(x - maximum) by the hardware's power of two; -inf gives 0. The difference is computed first: it is
// exact where it matters. maximum * kLog2e, computed once for a row, would have a rounding error that grows
// with the logits.
__device__ __forceinline__ float exp_relative(float x, float maximum) {
  return ptx::exp2((x - maximum) * kLog2e);
}

// The maximum of some numbers, and the sum of their exponentials relative to it.
struct SoftmaxSum {
  float maximum = -INFINITY, sum = 0;

  template <int kCount>
  __device__ void include(const float (&values)[kCount]) {
    float larger = maximum;
#pragma unroll
    for (int i = 0; i < kCount; ++i) larger = fmaxf(larger, values[i]);
    if (larger == -INFINITY) return;  // nothing to add, and -inf - -inf would be NaN
    if (larger > maximum) sum *= exp_relative(maximum, larger), maximum = larger;
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum += exp_relative(values[i], maximum);
  }
};

// Every thread gets the sum over all of the block's threads. Called once by a kernel.
__device__ SoftmaxSum block_softmax_sum(SoftmaxSum part) {
  __shared__ float maxima[kMaxWarps][1], sums[kMaxWarps][1];
  const int warps = blockDim.x / kWarp;
  const float warp_maximum = warp_max(part.maximum);
  if (threadIdx.x % kWarp == 0) maxima[threadIdx.x / kWarp][0] = warp_maximum;
  __syncthreads();  // every thread reads the maxima of all warps
  SoftmaxSum all;
  for (int w = 0; w < warps; ++w) all.maximum = fmaxf(all.maximum, maxima[w][0]);
  float sum[1] = {part.maximum == -INFINITY ? 0.0f : part.sum * exp_relative(part.maximum, all.maximum)};
  block_sum(sum, sums);
  all.sum = sum[0];
  return all;
}

// What stands in the place of a capped logit where there is no cap
struct AsItIs {
  __device__ __forceinline__ float value(float l) const { return l; }
  __device__ __forceinline__ float derivative(float /*value*/) const { return 1; }
};
// Before a rounding to bf16 the hardware's functions are exact enough.
struct FastMath {
  static __device__ __forceinline__ float exp(float x) { return ptx::exp2(x * kLog2e); }
  static __device__ __forceinline__ float reciprocal(float x) { return ptx::reciprocal(x); }
};
struct ExactMath {
  static __device__ __forceinline__ float exp(float x) { return expf(x); }
  static __device__ __forceinline__ float reciprocal(float x) { return 1 / x; }
};
template <class T>
using Capped = LogitCap<std::conditional_t<sizeof(T) == 4, ExactMath, FastMath>>;

template <class T>
__device__ void hide_padding(float (&values)[kPackWidth<T>], int column, int vocab_size, float with) {
#pragma unroll
  for (int i = 0; i < kPackWidth<T>; ++i)
    if (column + i >= vocab_size) values[i] = with;
}

// What a row may have besides, see CrossEntropy: kernels without them do not pay for them
struct Extras {
  float z_loss, label_smoothing;
};

// kept_packs: how much of a row shared memory holds, from its beginning
template <class T, class Logit, class Fp8, bool kExtras>
__global__ __launch_bounds__(kMostThreads) void cross_entropy_kernel(
    T* logits, const int32_t* targets, float* losses, int padded, int vocab_size, int kept_packs,
    bool want_gradient, Logit logit, const float* gradient_scale, const float* weights, Extras extras,
    Fp8 fp8_values) {
  constexpr int kWidth = kPackWidth<T>;
  extern __shared__ uint4 kept[];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * padded;
  T* row = logits + first;
  ResultWriter<Fp8> result(fp8_values);
  const float zeros[kWidth] = {};
  const int target = targets[blockIdx.x];
  if (target == kNoTarget) {  // the same for the whole block
    if (threadIdx.x == 0) losses[blockIdx.x] = 0;
    if (!want_gradient) return;
    for (int p = threadIdx.x; p < padded / kWidth; p += blockDim.x)
      result.store(logits, first + p * kWidth, zeros);
    return;  // a largest element of 0 need not be noted
  }
  // Before the barrier below; overwritten after
  const float target_logit = logit.value(static_cast<float>(row[target]));
  const int packs = padded / kWidth, real_packs = (vocab_size + kWidth - 1) / kWidth;
  const int stride = blockDim.x;

  SoftmaxSum part;
  float sum_of_logits[1] = {};
  float value[kWidth];
  const auto include = [&](int p, uint4 raw) {
    unpack<T>(raw, value);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) value[i] = logit.value(value[i]);
    if constexpr (kExtras) {
      if (p == real_packs - 1) hide_padding<T>(value, p * kWidth, vocab_size, 0);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum_of_logits[0] += value[i];
    }
    if (p == real_packs - 1) hide_padding<T>(value, p * kWidth, vocab_size, -INFINITY);
    part.include(value);
  };
  // Each thread copies the packs that it will read itself, so nothing that it keeps needs a barrier.
  const int packs_of_stage = (kept_packs + kStages * stride - 1) / (kStages * stride) * stride;
  const auto for_each_pack = [&](int stage, auto&& f) {
    const int end = min(kept_packs, (stage + 1) * packs_of_stage);
#pragma unroll 4
    for (int p = stage * packs_of_stage + threadIdx.x; p < end; p += stride) f(p);
  };
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) {
    for_each_pack(stage, [&](int p) { __pipeline_memcpy_async(&kept[p], row + p * kWidth, sizeof(uint4)); });
    __pipeline_commit();
  }
#pragma unroll 4
  for (int p = kept_packs + threadIdx.x; p < real_packs; p += stride) include(p, load_pack(row + p * kWidth));
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) {
    __pipeline_wait_prior(kStages - 1 - stage);
    for_each_pack(stage, [&](int p) { include(p, kept[p]); });
  }
  const SoftmaxSum all = block_softmax_sum(part);
  const float weight = weights ? weights[blockIdx.x] : 1;
  const float unit = weight * (gradient_scale ? *gradient_scale : 1);
  float scale = unit / all.sum, of_target = unit, of_each = 0;
  if constexpr (kExtras) {
    __shared__ float scratch[kMaxWarps][1];
    block_sum(sum_of_logits, scratch);
    const float s = extras.label_smoothing, columns = static_cast<float>(vocab_size);
    const float lse = logf(all.sum) + all.maximum;
    if (threadIdx.x == 0)
      losses[blockIdx.x] = weight * (lse - (1 - s) * target_logit - s * (sum_of_logits[0] / columns) +
                                     extras.z_loss * lse * lse);
    scale *= 1 + 2 * extras.z_loss * lse;
    of_target *= 1 - s;
    of_each = unit * s / columns;
  } else if (threadIdx.x == 0) {
    losses[blockIdx.x] = weight * (logf(all.sum) + all.maximum - target_logit);
  }
  if (!want_gradient) return;

  const int target_pack = target / kWidth;
#pragma unroll 2
  for (int p = threadIdx.x; p < real_packs; p += stride) {
    unpack<T>(p < kept_packs ? kept[p] : load_pack(row + p * kWidth), value);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float l = logit.value(value[i]);
      value[i] = kExtras ? (scale * exp_relative(l, all.maximum) - of_each) * logit.derivative(l)
                         : scale * exp_relative(l, all.maximum) * logit.derivative(l);
    }
    if (p == target_pack) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i)
        if (p * kWidth + i == target) value[i] -= of_target * logit.derivative(target_logit);
    }
    if (p == real_packs - 1) hide_padding<T>(value, p * kWidth, vocab_size, 0);
    result.store(logits, first + p * kWidth, value);
  }
  for (int p = real_packs + threadIdx.x; p < packs; p += stride)
    result.store(logits, first + p * kWidth, zeros);
  result.end();
}

template <class T>
__global__ void cap_kernel(T* logits, int64_t packs, Capped<T> logit) {
  const int64_t p = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (p >= packs) return;
  float value[kPackWidth<T>];
  load_step(logits + p * kPackWidth<T>, value);
#pragma unroll
  for (int i = 0; i < kPackWidth<T>; ++i) value[i] = logit.value(value[i]);
  store_step(logits + p * kPackWidth<T>, value);
}

// Calls f with what stands for a logit.
template <class T, class F>
void with_logit(float cap, F&& f) {
  cap > 0 ? f(Capped<T>(cap)) : f(AsItIs{});
}

}  // namespace

void CudaBackend::run_op(const CapLogits& a, const Launch& on) {
  check_packs(a.kName, {{"logits", a.logits}});
  with_real_type(a.logits.dtype, [&]<class T>() {
    const int64_t packs = a.logits.numel() / kPackWidth<T>;
    cap_kernel<T><<<cuda::divide_up(packs, kThreads), kThreads, 0, on.stream>>>(a.logits.as<T>(), packs,
                                                                                Capped<T>(a.cap));
    TESSERA_CUDA_LAUNCHED();
  });
}

void CudaBackend::run_op(const CrossEntropy& a, const Launch& on) {
  check_packs(a.kName, {{"logits", a.logits}});
  check_aligned(a.kName, {{"fp8_dlogits", a.fp8_dlogits.y.data}});
  const int64_t N = a.logits.shape[0], padded = a.logits.shape[1];
  check(padded < INT32_MAX, "{}: supports fewer than 2^31 columns, found {}", a.kName, a.logits.to_string());
  with_real_type(a.logits.dtype, [&]<class T>() {
    constexpr int64_t kReductionBytes = 1024;  // shared memory that the block's sums take
    const int64_t row_bytes = padded * static_cast<int64_t>(sizeof(T));
    const int64_t kept_bytes = std::min(row_bytes, (max_shared_bytes_ - kReductionBytes) / 16 * 16);
    const int64_t most_threads = 2 * row_bytes <= max_shared_bytes_ ? kThreads : kMostThreads;
    const int64_t threads = std::min(most_threads, cuda::divide_up(row_bytes, 16 * kWarp) * kWarp);
    const int64_t real_packs = cuda::divide_up(a.vocab_size, kPackWidth<T>);
    with_fp8<T, __NV_E5M2>(a.fp8_dlogits, [&]<class Fp8>(Fp8 fp8_values) {
      with_logit<T>(a.cap, [&]<class Logit>(Logit logit) {
        const bool has_extras = a.z_loss > 0 || a.label_smoothing > 0;
        const auto kernel = has_extras ? cross_entropy_kernel<T, Logit, Fp8, true>
                                       : cross_entropy_kernel<T, Logit, Fp8, false>;
        TESSERA_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(kept_bytes)));
        kernel<<<N, threads, kept_bytes, on.stream>>>(
            a.logits.as<T>(), a.targets.as<int32_t>(), a.losses.as<float>(), static_cast<int>(padded),
            static_cast<int>(a.vocab_size), static_cast<int>(std::min(kept_bytes / 16, real_packs)),
            a.want_gradient, logit, a.gradient_scale.as<float>(), a.weights.as<float>(),
            Extras{a.z_loss, a.label_smoothing}, fp8_values);
      });
    });
    TESSERA_CUDA_LAUNCHED();
  });
}

}  // namespace tessera
