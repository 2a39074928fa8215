#include <algorithm>
#include <atomic>

#include "kernels/base/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/fp8_codes.h"
#include "kernels/cpu/streaming_softmax.h"

namespace tessera::cpu {

void run(const CrossEntropy& a, const Launch& /*on*/) {
  const int64_t N = a.logits.shape[0], padded = a.logits.shape[1], V = a.vocab_size;
  const int32_t* targets = a.targets.as<int32_t>();
  const float gradient_scale = a.gradient_scale ? *a.gradient_scale.as<float>() : 1;
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
    const float target_logit = row[targets[n]];
    if (!a.want_gradient) {
      float largest = row[0], sum = 0;
#pragma omp simd reduction(max : largest)
      for (int64_t v = 0; v < V; ++v) largest = row[v] > largest ? row[v] : largest;
#pragma omp simd reduction(+ : sum)
      for (int64_t v = 0; v < V; ++v) sum += exp(row[v] - largest);
      a.losses.as<float>()[n] = largest + std::log(sum) - target_logit;
      continue;
    }
    StreamingSoftmax softmax;
    softmax.absorb(row, V);
    a.losses.as<float>()[n] = softmax.log_sum_exp() - target_logit;
    const float scale = gradient_scale / softmax.sum;
    for (int64_t v = 0; v < V; ++v) row[v] *= scale;
    row[targets[n]] -= gradient_scale;
    std::fill(row + V, row + padded, 0.0f);
  }
  write_codes(a.logits, DType::kE5M2, a.fp8_dlogits);
}

}  // namespace tessera::cpu
