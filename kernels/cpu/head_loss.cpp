#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"
#include "kernels/cpu/cpu_backend.h"

namespace tessera::cpu {
namespace {

constexpr float kMostExponent = 60;

}  // namespace

void run(const HeadLoss& a, const Launch& on) {
  const int64_t N = a.x.shape[0], C = a.x.shape[1], padded = a.weight.shape[0], V = a.vocab_size;
  const int32_t* targets = a.targets.as<int32_t>();
  for (int64_t n = 0; n < N; ++n)
    check((targets[n] >= 0 && targets[n] < V) || targets[n] == kNoTarget,
          "{}: target {} at row {} is outside the vocabulary of {}", a.kName, targets[n], n, V);
  run(LinearForward{.x = a.x, .weight = a.weight, .y = a.e}, on);
  const float gradient_scale = a.gradient_scale ? *a.gradient_scale.as<float>() : 1;
#pragma omp parallel for
  for (int64_t n = 0; n < N; ++n) {
    float* e = a.e.as<float>() + n * padded;
    const bool has_target = targets[n] != kNoTarget;
    const float reference = has_target ? e[targets[n]] : 0;
    double sum = 0;  // fp32 would lose the small terms of a large vocabulary
    for (int64_t v = 0; v < padded; ++v) {
      const float x = e[v] - reference;
      e[v] = v >= V || v == targets[n] ? 0 : std::exp(x > kMostExponent ? kMostExponent : x);
      sum += e[v];
    }
    const float weight = a.weights ? a.weights.as<float>()[n] : 1;
    const double loss = std::log1p(sum), lse = reference + loss, of_z = 2 * a.z_loss * lse;
    const double share = weight * gradient_scale / (1 + sum);
    const float factor = has_target ? static_cast<float>(share * (1 + of_z)) : 0;
    a.losses.as<float>()[n] = has_target ? weight * static_cast<float>(loss + a.z_loss * lse * lse) : 0;
    a.factors.as<float>()[n] = factor;
    a.factors.as<float>()[N + n] = has_target ? static_cast<float>(share * (of_z - sum)) : 0;
    const float* x = a.x.as<float>() + n * C;
    float* scaled = a.scaled_x.as<float>() + n * C;
    for (int64_t c = 0; c < C; ++c) scaled[c] = factor * x[c];
  }
}

void run(const HeadGradient& a, const Launch& /*on*/) {
  const int64_t N = a.x.shape[0], C = a.x.shape[1];
  const int32_t* targets = a.targets.as<int32_t>();
  const float *of_product = a.factors.as<float>(), *of_target = of_product + N;
#pragma omp parallel for
  for (int64_t c = 0; c < C; ++c)  // a thread has columns, so that rows are added in their order
    for (int64_t n = 0; n < N; ++n)
      if (targets[n] != kNoTarget)
        a.dweight.as<float>()[targets[n] * C + c] += of_target[n] * a.x.as<float>()[n * C + c];
#pragma omp parallel for
  for (int64_t n = 0; n < N; ++n) {
    const float* row = a.weight.as<float>() + std::max<int64_t>(targets[n], 0) * C;
    for (int64_t c = 0; c < C; ++c)
      a.x.as<float>()[n * C + c] = of_product[n] * a.product.as<float>()[n * C + c] + of_target[n] * row[c];
  }
}

}  // namespace tessera::cpu
