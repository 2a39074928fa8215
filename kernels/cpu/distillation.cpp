#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"
#include "kernels/cpu/cpu_backend.h"

namespace tessera::cpu {
namespace {

// softmax(row / temperature): its base and the logarithm of its sum
struct Softmax {
  double scale, base, log_sum;

  Softmax(const float* row, int64_t count, double temperature)
      : scale(1 / temperature), base(scale * *std::max_element(row, row + count)), log_sum(0) {
    double sum = 0;
    for (int64_t v = 0; v < count; ++v) sum += std::exp(scale * row[v] - base);
    log_sum = std::log(sum);
  }
  double log_of(float logit) const { return scale * logit - base - log_sum; }
};

void run_row(const Distillation& a, int64_t n) {
  const int64_t padded = a.logits.shape[1], V = a.vocab_size;
  float* row = a.logits.as<float>() + n * padded;
  const float* teacher = a.teacher.as<float>() + n * a.teacher.shape[1];
  const int32_t target = a.targets.as<int32_t>()[n];
  const double t = a.temperature, c = a.cross_entropy, of_teacher = (1 - c) * t;
  const Softmax plain(row, V, 1), own(row, V, t), its(teacher, V, t);
  double divergence = 0;
  for (int64_t v = 0; v < V; ++v) {
    const double log_p = its.log_of(teacher[v]);
    divergence += std::exp(log_p) * (log_p - own.log_of(row[v]));
  }
  const double weight = a.weights ? a.weights.as<float>()[n] : 1;
  a.losses.as<float>()[n] =
      static_cast<float>(weight * (-c * plain.log_of(row[target]) + of_teacher * t * divergence));
  if (!a.want_gradient) return;
  const double unit = weight * (a.gradient_scale ? *a.gradient_scale.as<float>() : 1);
  for (int64_t v = 0; v < V; ++v) {
    const double of_target = std::exp(plain.log_of(row[v])) - (v == target ? 1 : 0);
    const double of_all = std::exp(own.log_of(row[v])) - std::exp(its.log_of(teacher[v]));
    row[v] = static_cast<float>(unit * (c * of_target + of_teacher * of_all));
  }
  std::fill(row + V, row + padded, 0.0f);
}

}  // namespace

void run(const Distillation& a, const Launch& /*on*/) {
  const int64_t N = a.logits.shape[0], padded = a.logits.shape[1];
  const int32_t* targets = a.targets.as<int32_t>();
  for (int64_t n = 0; n < N; ++n)
    check((targets[n] >= 0 && targets[n] < a.vocab_size) || targets[n] == kNoTarget,
          "{}: target {} at row {} is outside the vocabulary of {}", a.kName, targets[n], n, a.vocab_size);
#pragma omp parallel for
  for (int64_t n = 0; n < N; ++n) {
    if (targets[n] != kNoTarget) {
      run_row(a, n);
      continue;
    }
    a.losses.as<float>()[n] = 0;
    float* row = a.logits.as<float>() + n * padded;
    if (a.want_gradient) std::fill(row, row + padded, 0.0f);
  }
}

}  // namespace tessera::cpu
