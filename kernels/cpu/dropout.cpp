#include <algorithm>

#include "kernels/base/documents.h"
#include "kernels/cpu/cpu_backend.h"

namespace tessera::cpu {

void run(const ApplyDropout& a, const Launch& /*on*/) {
  const int64_t B = a.x.shape[0], T = a.x.shape[1], C = a.x.shape[2];
  constexpr int64_t kBlock = 2 * Dropout::kUnit;  // channels compared at a time
  const DropoutMask dropout(a.dropout);
  const float scale = dropout.scale();
#pragma omp parallel for
  for (int64_t n = 0; n < B * T; ++n) {
    const auto row = static_cast<uint32_t>(given_position<int64_t>(a.rows.as<int32_t>(), nullptr, n, T));
    const float *x = a.x.as<float>() + n * C, *add = a.add ? a.add.as<float>() + n * C : nullptr;
    float* y = a.y.as<float>() + n * C;
    for (int64_t first = 0; first < C; first += kBlock) {
      const uint32_t kept =
          dropout.kept(static_cast<uint32_t>(n / T), 0, row, static_cast<uint32_t>(first / kBlock));
      const int64_t last = std::min(C, first + kBlock);
#pragma omp simd  // y may be x or add itself: an element is read before it is written
      for (int64_t c = first; c < last; ++c) {
        const float value = kept >> (c - first) & 1 ? x[c] * scale : 0.0f;
        y[c] = add ? add[c] + value : value;
      }
    }
  }
}

}  // namespace tessera::cpu
