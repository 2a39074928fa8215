// Distillation. A block has a row of both logits: it finds the largest ones, then the sums of exponentials
// that the three softmaxes need together with the sums of p and of q times (teacher - logits) / t, and then
// writes the gradient. It reads each row three times, the second and third time mostly from the L2 cache.
//   F =   sum of p (teacher - logits) / t + log of the sum of exp(logits / t) - that of the teacher's
//   R = - sum of q (teacher - logits) / t - log of the sum of exp(logits / t) + that of the teacher's
// With the teacher's K largest logits only, a block marks their ids in a bitmap in shared memory. It adds up
// the other logits as one, so that nothing is subtracted from a sum near to it, and writes their gradients;
// then it writes those of the K.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"

namespace tessera {
namespace {

constexpr int kThreads = 512;
constexpr int64_t kMostKnown = 360'000;  // bits in the shared memory that a kernel has without asking

struct DistilledRows {
  const int32_t* targets;
  float* losses;
  const float *gradient_scale, *weights;
  int64_t padded, teacher_padded, vocab_size;
  float temperature, cross_entropy, reverse;
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
__device__ void fill_zero(T* row, int64_t from, int64_t to) {
  for (int64_t v = from + threadIdx.x; v < to; v += kThreads) row[v] = static_cast<T>(0.0f);
}

// Whether a row has a target; else its loss and its gradient are 0. The same for the whole block
template <class T>
__device__ bool has_target(T* row, const DistilledRows& a, int64_t n) {
  if (a.targets[n] != kNoTarget) return true;
  if (threadIdx.x == 0) a.losses[n] = 0;
  if (a.want_gradient) fill_zero(row, 0, a.padded);
  return false;
}

// What the gradients of a row have in common
struct Mixed {
  float unit, c, of_teacher, reverse, divergence;  // divergence: the reverse one

  // The gradient of a logit whose probability is `plain` at the temperature 1, and p and q at t; `ratio` is
  // log(q / p)
  __device__ float slope(float plain, bool is_target, float p, float q, float ratio) const {
    const float of_target = plain - (is_target ? 1.0f : 0.0f);
    return unit * (c * of_target + of_teacher * event(p, q, ratio));
  }
  __device__ float event(float p, float q, float ratio) const {
    const float backward = reverse > 0 && q > 0 ? reverse * q * (ratio - divergence) : 0.0f;
    return (1 - reverse) * (q - p) + backward;
  }
};

// Writes the loss of a row
__device__ Mixed finish_loss(const DistilledRows& a, int64_t n, float cross_entropy, float forward,
                             float reverse) {
  const float c = a.cross_entropy, weight = a.weights ? a.weights[n] : 1;
  const float mixed =
      (1 - a.reverse) * fmaxf(forward, 0) + (a.reverse > 0 ? a.reverse * fmaxf(reverse, 0) : 0);
  if (threadIdx.x == 0)
    a.losses[n] = weight * (c * cross_entropy + (1 - c) * a.temperature * a.temperature * mixed);
  return {.unit = weight * (a.gradient_scale ? *a.gradient_scale : 1),
          .c = c,
          .of_teacher = (1 - c) * a.temperature,
          .reverse = a.reverse,
          .divergence = reverse};
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    distillation_kernel(T* logits, const T* teacher_logits, DistilledRows a) {
  __shared__ float maxima[kMaxWarps], scratch[kMaxWarps][5];
  const int64_t n = blockIdx.x;
  T* row = logits + n * a.padded;
  if (!has_target(row, a, n)) return;
  const T* teacher = teacher_logits + n * a.teacher_padded;
  const int target = a.targets[n];
  const float target_logit = static_cast<float>(row[target]), inverse = 1 / a.temperature;
  float most = -INFINITY, teachers_most = -INFINITY;
  for (int64_t v = threadIdx.x; v < a.vocab_size; v += kThreads) {
    most = fmaxf(most, static_cast<float>(row[v]));
    teachers_most = fmaxf(teachers_most, static_cast<float>(teacher[v]));
  }
  most = block_max(most, maxima);
  teachers_most = block_max(teachers_most, maxima);
  // Of softmax(logits), softmax(logits / t), softmax(teacher / t), and the weighted differences
  float sums[5] = {};
  for (int64_t v = threadIdx.x; v < a.vocab_size; v += kThreads) {
    const float own = static_cast<float>(row[v]) - most, its = static_cast<float>(teacher[v]) - teachers_most;
    const float p = expf(its * inverse), q = expf(own * inverse);
    sums[0] += expf(own), sums[1] += q, sums[2] += p;
    sums[3] += p * (its - own) * inverse;
    sums[4] += q * (its - own) * inverse;
  }
  block_sum(sums, scratch);
  const float logs = logf(sums[1]) - logf(sums[2]);  // log(q / p) is (own - its) / t - this
  const Mixed mixed = finish_loss(a, n, logf(sums[0]) + most - target_logit, sums[3] / sums[2] + logs,
                                  -sums[4] / sums[1] - logs);
  if (!a.want_gradient) return;
  for (int64_t v = threadIdx.x; v < a.vocab_size; v += kThreads) {
    const float own = static_cast<float>(row[v]) - most, its = static_cast<float>(teacher[v]) - teachers_most;
    row[v] = static_cast<T>(mixed.slope(expf(own) / sums[0], v == target, expf(its * inverse) / sums[2],
                                        expf(own * inverse) / sums[1], (own - its) * inverse - logs));
  }
  fill_zero(row, a.vocab_size, a.padded);
}

struct LargestOfTeacher {
  const int32_t* ids;   // [N, K]
  const float* values;  // [N, K + 1]
  int64_t count;        // K
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    distillation_largest_kernel(T* logits, LargestOfTeacher teacher, DistilledRows a) {
  extern __shared__ unsigned is_known[];  // a bit for each token
  __shared__ float maxima[kMaxWarps], scratch[kMaxWarps][4], of_known[kMaxWarps][2];
  const int64_t n = blockIdx.x, K = teacher.count;
  T* row = logits + n * a.padded;
  if (!has_target(row, a, n)) return;
  const int32_t* ids = teacher.ids + n * K;
  const float* values = teacher.values + n * (K + 1);
  const int target = a.targets[n];
  const float target_logit = static_cast<float>(row[target]), inverse = 1 / a.temperature;
  for (int64_t i = threadIdx.x; i < (a.vocab_size + 31) / 32; i += kThreads) is_known[i] = 0;
  __syncthreads();
  for (int64_t k = threadIdx.x; k < K; k += kThreads) atomicOr(&is_known[ids[k] / 32], 1u << (ids[k] % 32));
  const auto knows = [&](int64_t v) { return is_known[v / 32] >> (v % 32) & 1u; };
  const float others = values[K];  // already over t
  float most = -INFINITY, teachers_most = others;
  for (int64_t v = threadIdx.x; v < a.vocab_size; v += kThreads)
    most = fmaxf(most, static_cast<float>(row[v]));
  for (int64_t k = threadIdx.x; k < K; k += kThreads)
    teachers_most = fmaxf(teachers_most, values[k] * inverse);
  most = block_max(most, maxima);  // passes a barrier: the bitmap is complete
  teachers_most = block_max(teachers_most, maxima);
  float sums[4] = {};  // of softmax(logits), softmax(logits / t), its part of unknown tokens, the teacher's
  for (int64_t v = threadIdx.x; v < a.vocab_size; v += kThreads) {
    const float own = static_cast<float>(row[v]) - most, q = expf(own * inverse);
    sums[0] += expf(own), sums[1] += q, sums[2] += knows(v) ? 0.0f : q;
  }
  for (int64_t k = threadIdx.x; k < K; k += kThreads) sums[3] += expf(values[k] * inverse - teachers_most);
  block_sum(sums, scratch);
  const float log_own = logf(sums[1]), log_its = logf(sums[3] + expf(others - teachers_most)) + teachers_most;
  const auto ratio_of = [&](int64_t k) {  // log(q / p)
    return (static_cast<float>(row[ids[k]]) - most - values[k]) * inverse - log_own + log_its;
  };
  const auto p_of = [&](int64_t k) { return expf(values[k] * inverse - log_its); };
  const auto q_of = [&](int64_t k) {
    return expf((static_cast<float>(row[ids[k]]) - most) * inverse - log_own);
  };
  float divergences[2] = {};  // forward, reverse
  for (int64_t k = threadIdx.x; k < K; k += kThreads) {
    const float ratio = ratio_of(k), q = q_of(k);
    divergences[0] -= p_of(k) * ratio;
    if (q > 0) divergences[1] += q * ratio;
  }
  block_sum(divergences, of_known);
  const float p_others = expf(others - log_its), q_others = sums[2] / sums[1];
  const float ratio_others = logf(q_others) - (others - log_its);
  if (p_others > 0) divergences[0] -= p_others * ratio_others;
  if (q_others > 0) divergences[1] += q_others * ratio_others;
  const Mixed mixed = finish_loss(a, n, logf(sums[0]) + most - target_logit, divergences[0], divergences[1]);
  if (!a.want_gradient) return;
  const float of_others = q_others > 0 ? mixed.event(p_others, q_others, ratio_others) / sums[2] : 0.0f;
  for (int64_t v = threadIdx.x; v < a.vocab_size; v += kThreads) {
    if (knows(v)) continue;
    const float own = static_cast<float>(row[v]) - most,
                of_target = expf(own) / sums[0] - (v == target ? 1 : 0);
    row[v] = static_cast<T>(mixed.unit *
                            (mixed.c * of_target + mixed.of_teacher * of_others * expf(own * inverse)));
  }
  for (int64_t k = threadIdx.x; k < K; k += kThreads) {
    const int32_t v = ids[k];
    const float plain = expf(static_cast<float>(row[v]) - most) / sums[0];
    row[v] = static_cast<T>(mixed.slope(plain, v == target, p_of(k), q_of(k), ratio_of(k)));
  }
  fill_zero(row, a.vocab_size, a.padded);
}

}  // namespace

void CudaBackend::run_op(const Distillation& a, const Launch& on) {
  const int64_t N = a.logits.shape[0];
  const DistilledRows rows{.targets = a.targets.as<int32_t>(),
                           .losses = a.losses.as<float>(),
                           .gradient_scale = a.gradient_scale.as<float>(),
                           .weights = a.weights.as<float>(),
                           .padded = a.logits.shape[1],
                           .teacher_padded = a.teacher ? a.teacher.shape[1] : 0,
                           .vocab_size = a.vocab_size,
                           .temperature = a.temperature,
                           .cross_entropy = a.cross_entropy,
                           .reverse = a.reverse,
                           .want_gradient = a.want_gradient};
  with_real_type(a.logits.dtype, [&]<class T>() {
    if (a.teacher) {
      distillation_kernel<T><<<N, kThreads, 0, on.stream>>>(a.logits.as<T>(), a.teacher.as<T>(), rows);
    } else {
      const LargestOfTeacher teacher{a.largest_ids.as<int32_t>(), a.largest.as<float>(),
                                     a.largest_ids.shape[1]};
      check(a.vocab_size <= kMostKnown, "{}: largest_ids serve vocabularies of at most {} tokens, found {}",
            a.kName, kMostKnown, a.vocab_size);
      const auto bytes = static_cast<size_t>(4 * ((a.vocab_size + 31) / 32));
      distillation_largest_kernel<T><<<N, kThreads, bytes, on.stream>>>(a.logits.as<T>(), teacher, rows);
    }
    TESSERA_CUDA_LAUNCHED();
  });
}

}  // namespace tessera
