#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/fp8_values.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/logit_cap.h"

namespace tessera::cpu {
namespace {

// Exponentials that are added in fp32; these sums are added in fp64. In one fp32 sum of a whole vocabulary
// the small terms of a large sum are lost: 1.7e-5 nats of 49,152 tokens, and always downward.
constexpr int64_t kBlock = 256;

using Capped = LogitCap<CapMath>;
// What stands in the place of a capped logit where there is no cap
struct AsItIs {
  float value(float l) const { return l; }
  float derivative(float /*value*/) const { return 1; }
};

// What is subtracted from a row before exp(): its largest element, or 0 where all are -inf
float base_of(const float* row, int64_t count) {
  const float largest = largest_of(row, count);
  return largest == -std::numeric_limits<float>::infinity() ? 0.0f : largest;
}

// The sum of exp(logit - base)
template <class Logit>
double sum_of_exp(const float* row, int64_t count, float base, const Logit& logit) {
  double sum = 0;
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t end = std::min(first + kBlock, count);
    float of_block = 0;
#pragma omp simd reduction(+ : of_block)
    for (int64_t v = first; v < end; ++v) of_block += exp(logit.value(row[v]) - base);
    sum += of_block;
  }
  return sum;
}

// The same, to the bit if there is no cap, and the row becomes exp(logit - base) times the derivative of the
// logit.
template <class Logit>
double turn_into_exp(float* row, int64_t count, float base, const Logit& logit) {
  double sum = 0;
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t end = std::min(first + kBlock, count);
    float of_block = 0;
#pragma omp simd reduction(+ : of_block)
    for (int64_t v = first; v < end; ++v) {
      const float value = logit.value(row[v]), e = exp(value - base);
      row[v] = e * logit.derivative(value);
      of_block += e;
    }
    sum += of_block;
  }
  return sum;
}

// The mean of a row's logits
template <class Logit>
double mean_of(const float* row, int64_t count, const Logit& logit) {
  double sum = 0;
  for (int64_t v = 0; v < count; ++v) sum += logit.value(row[v]);
  return sum / static_cast<double>(count);
}

// A row with z_loss or label_smoothing
template <class Logit>
void run_row_with_extras(const CrossEntropy& a, const Logit& logit, int64_t n) {
  const int64_t padded = a.logits.shape[1], V = a.vocab_size;
  const int32_t target = a.targets.as<int32_t>()[n];
  float* row = a.logits.as<float>() + n * padded;
  const float base = logit.value(base_of(row, V)), target_logit = logit.value(row[target]);
  const double sum = sum_of_exp(row, V, base, logit), lse = base + std::log(sum);
  const double s = a.label_smoothing, mean = s > 0 ? mean_of(row, V, logit) : 0;
  const double weight = a.weights ? a.weights.as<float>()[n] : 1;
  a.losses.as<float>()[n] =
      static_cast<float>(weight * (lse - (1 - s) * target_logit - s * mean + a.z_loss * lse * lse));
  if (!a.want_gradient) return;
  const double unit = weight * (a.gradient_scale ? *a.gradient_scale.as<float>() : 1);
  const double share = unit * (1 + 2 * a.z_loss * lse) / sum, even = unit * s / static_cast<double>(V);
  for (int64_t v = 0; v < V; ++v) {
    const float value = logit.value(row[v]);
    const double of_target = v == target ? unit * (1 - s) : 0;
    row[v] = static_cast<float>((share * exp(value - base) - even - of_target) * logit.derivative(value));
  }
  std::fill(row + V, row + padded, 0.0f);
}

template <class Logit>
void run_rows(const CrossEntropy& a, const Logit& logit) {
  const int64_t N = a.logits.shape[0], padded = a.logits.shape[1], V = a.vocab_size;
  const int32_t* targets = a.targets.as<int32_t>();
  const float scale_of_all = a.gradient_scale ? *a.gradient_scale.as<float>() : 1;
  for (int64_t n = 0; n < N; ++n)
    check((targets[n] >= 0 && targets[n] < V) || targets[n] == kNoTarget,
          "{}: target {} at row {} is outside the vocabulary of {}", a.kName, targets[n], n, V);
#pragma omp parallel for
  for (int64_t n = 0; n < N; ++n) {
    float* row = a.logits.as<float>() + n * padded;
    if (targets[n] == kNoTarget) {
      a.losses.as<float>()[n] = 0;
      if (a.want_gradient) std::fill(row, row + padded, 0.0f);
      continue;
    }
    if (a.z_loss > 0 || a.label_smoothing > 0) {
      run_row_with_extras(a, logit, n);
      continue;
    }
    const float target_logit = logit.value(row[targets[n]]), base = logit.value(base_of(row, V));
    const double sum = a.want_gradient ? turn_into_exp(row, V, base, logit) : sum_of_exp(row, V, base, logit);
    const float weight = a.weights ? a.weights.as<float>()[n] : 1, gradient_scale = scale_of_all * weight;
    a.losses.as<float>()[n] = weight * static_cast<float>(base + std::log(sum) - target_logit);
    if (!a.want_gradient) continue;
    const auto scale = static_cast<float>(gradient_scale / sum);
    for (int64_t v = 0; v < V; ++v) row[v] *= scale;
    row[targets[n]] -= gradient_scale * logit.derivative(target_logit);
    std::fill(row + V, row + padded, 0.0f);
  }
}

}  // namespace

void run(const CapLogits& a, const Launch& /*on*/) {
  float* logits = a.logits.as<float>();
  const int64_t count = a.logits.numel();
  const Capped logit(a.cap);
#pragma omp parallel for simd
  for (int64_t i = 0; i < count; ++i) logits[i] = logit.value(logits[i]);
}

void run(const CrossEntropy& a, const Launch& /*on*/) {
  a.cap > 0 ? run_rows(a, Capped(a.cap)) : run_rows(a, AsItIs{});
  write_fp8(a.logits, DType::kE5M2, a.fp8_dlogits);
}

}  // namespace tessera::cpu
