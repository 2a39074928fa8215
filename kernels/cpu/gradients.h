// Gradients of parameters on the CPU.
#pragma once

#include <algorithm>
#include <cstring>
#include <initializer_list>

#include "kernels/base/tensor.h"

namespace tessera::cpu {

// Prepares the gradients that an operation adds to: unless it accumulates, they become zeros. Empty tensors
// are gradients that are not computed.
inline void begin_gradients(bool accumulate, std::initializer_list<Tensor> gradients) {
  if (accumulate) return;
  for (const Tensor& gradient : gradients)
    if (gradient) std::memset(gradient.data, 0, gradient.bytes());
}

// sum[c] += the sum of the rows of x [N, C]; if `sum` has fewer elements, only of its first columns
inline void add_rows(const Tensor& x, const Tensor& sum) {
  const int64_t N = x.shape[0], C = x.shape[1], summed = sum.numel();
  const float* from = x.as<float>();
  float* to = sum.as<float>();
  constexpr int64_t kChunk = 64;  // columns a task owns
#pragma omp parallel for
  for (int64_t first = 0; first < summed; first += kChunk) {
    const int64_t last = std::min(summed, first + kChunk);
    for (int64_t n = 0; n < N; ++n)
      for (int64_t c = first; c < last; ++c) to[c] += from[n * C + c];
  }
}

}  // namespace tessera::cpu
