#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/cpu_backend.h"

namespace tessera::cpu {

void global_norm(const GlobalNorm& a) {
  constexpr int64_t kBlock =
      1 << 16;  // elements summed in one go: fixed, so that the order of the sum is too
  double total = 0;
  std::vector<double> sums;
  for (const Tensor& tensor : a.tensors) {
    const int64_t count = tensor.numel(), blocks = (count + kBlock - 1) / kBlock;
    const float* x = tensor.as<float>();
    sums.assign(blocks, 0.0);
#pragma omp parallel for
    for (int64_t block = 0; block < blocks; ++block) {
      double sum = 0;
      const int64_t last = std::min(count, (block + 1) * kBlock);
#pragma omp simd reduction(+ : sum)
      for (int64_t i = block * kBlock; i < last; ++i) sum += static_cast<double>(x[i]) * x[i];
      sums[block] = sum;
    }
    for (double sum : sums) total += sum;
  }
  a.norm.as<float>()[0] = static_cast<float>(std::sqrt(total));
}

void adamw(const AdamW& a) {
  const float norm = a.grad_norm.as<float>()[0];
  if (!std::isfinite(norm)) return;
  const float clip = a.max_norm > 0 ? std::min(1.0f, static_cast<float>(a.max_norm) / (norm + 1e-6f)) : 1.0f;
  const double step = static_cast<double>(a.step);
  const float denominator_scale = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(a.beta2, step)));
  const float rate = static_cast<float>(a.learning_rate / (1.0 - std::pow(a.beta1, step)));
  const float keep = static_cast<float>(1.0 - a.learning_rate * a.weight_decay);
  const float beta1 = static_cast<float>(a.beta1), gain1 = static_cast<float>(1.0 - a.beta1);
  const float beta2 = static_cast<float>(a.beta2), gain2 = static_cast<float>(1.0 - a.beta2);
  const float epsilon = static_cast<float>(a.epsilon);
  float *p = a.param.as<float>(), *m = a.m.as<float>(), *v = a.v.as<float>();
  const float* grad = a.grad.as<float>();
  const int64_t count = a.param.numel();
#pragma omp parallel for simd
  for (int64_t i = 0; i < count; ++i) {
    const float g = grad[i] * clip;
    m[i] = beta1 * m[i] + gain1 * g;
    v[i] = beta2 * v[i] + gain2 * g * g;
    p[i] = p[i] * keep - rate * m[i] / (std::sqrt(v[i]) * denominator_scale + epsilon);
  }
}

}  // namespace tessera::cpu
