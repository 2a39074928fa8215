// Distillation. A block has a row of both logits: it finds the largest ones, then the sums of exponentials
// that the three softmaxes need together with the sum of p (teacher - logits) / t, and then writes the
// gradient. It reads each row three times, the second and third time mostly from the L2 cache.
//   KL = sum of p (teacher - logits) / t  + log of the sum of exp(logits / t) - that of the teacher's
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"

namespace tessera {
namespace {

constexpr int kThreads = 512;

struct DistilledRows {
  const int32_t* targets;
  float* losses;
  const float *gradient_scale, *weights;
  int64_t padded, teacher_padded, vocab_size;
  float temperature, cross_entropy;
  bool want_gradient;
};

__device__ float block_max(float value, float (&scratch)[kMaxWarps]) {
  value = warp_max(value);
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = value;
  __syncthreads();
  for (int w = 0; w < kThreads / kWarp; ++w) value = fmaxf(value, scratch[w]);
  __syncthreads();  // before the next maximum takes the scratch
  return value;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    distillation_kernel(T* logits, const T* teacher_logits, DistilledRows a) {
  __shared__ float maxima[kMaxWarps], scratch[kMaxWarps][4];
  const int64_t n = blockIdx.x;
  T* row = logits + n * a.padded;
  const T* teacher = teacher_logits + n * a.teacher_padded;
  const int target = a.targets[n];
  const auto fill_zero = [&](int64_t from) {
    for (int64_t v = from + threadIdx.x; v < a.padded; v += kThreads) row[v] = static_cast<T>(0.0f);
  };
  if (target == kNoTarget) {  // the same for the whole block
    if (threadIdx.x == 0) a.losses[n] = 0;
    if (a.want_gradient) fill_zero(0);
    return;
  }
  const float target_logit = static_cast<float>(row[target]), inverse = 1 / a.temperature;
  float most = -INFINITY, teachers_most = -INFINITY;
  for (int64_t v = threadIdx.x; v < a.vocab_size; v += kThreads) {
    most = fmaxf(most, static_cast<float>(row[v]));
    teachers_most = fmaxf(teachers_most, static_cast<float>(teacher[v]));
  }
  most = block_max(most, maxima);
  teachers_most = block_max(teachers_most, maxima);
  float sums[4] =
      {};  // of softmax(logits), softmax(logits / t), softmax(teacher / t); the weighted difference
  for (int64_t v = threadIdx.x; v < a.vocab_size; v += kThreads) {
    const float own = static_cast<float>(row[v]) - most, its = static_cast<float>(teacher[v]) - teachers_most;
    const float p = expf(its * inverse);
    sums[0] += expf(own), sums[1] += expf(own * inverse), sums[2] += p;
    sums[3] += p * (its - own) * inverse;
  }
  block_sum(sums, scratch);
  const float c = a.cross_entropy, of_teacher = (1 - c) * a.temperature;
  const float weight = a.weights ? a.weights[n] : 1;
  if (threadIdx.x == 0) {
    const float divergence = sums[3] / sums[2] + logf(sums[1]) - logf(sums[2]);
    a.losses[n] = weight * (c * (logf(sums[0]) + most - target_logit) +
                            of_teacher * a.temperature * fmaxf(divergence, 0));
  }
  if (!a.want_gradient) return;
  const float unit = weight * (a.gradient_scale ? *a.gradient_scale : 1);
  for (int64_t v = threadIdx.x; v < a.vocab_size; v += kThreads) {
    const float own = static_cast<float>(row[v]) - most, its = static_cast<float>(teacher[v]) - teachers_most;
    const float of_target = expf(own) / sums[0] - (v == target ? 1.0f : 0.0f);
    const float of_all = expf(own * inverse) / sums[1] - expf(its * inverse) / sums[2];
    row[v] = static_cast<T>(unit * (c * of_target + of_teacher * of_all));
  }
  fill_zero(a.vocab_size);
}

}  // namespace

void CudaBackend::run_op(const Distillation& a, const Launch& on) {
  const DistilledRows rows{.targets = a.targets.as<int32_t>(),
                           .losses = a.losses.as<float>(),
                           .gradient_scale = a.gradient_scale.as<float>(),
                           .weights = a.weights.as<float>(),
                           .padded = a.logits.shape[1],
                           .teacher_padded = a.teacher.shape[1],
                           .vocab_size = a.vocab_size,
                           .temperature = a.temperature,
                           .cross_entropy = a.cross_entropy,
                           .want_gradient = a.want_gradient};
  with_real_type(a.logits.dtype, [&]<class T>() {
    distillation_kernel<T>
        <<<a.logits.shape[0], kThreads, 0, on.stream>>>(a.logits.as<T>(), a.teacher.as<T>(), rows);
    TESSERA_CUDA_LAUNCHED();
  });
}

}  // namespace tessera
