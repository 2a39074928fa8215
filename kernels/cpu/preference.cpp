#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/base/documents.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/preference_side.h"

namespace tessera::cpu {

void run(const PreferenceLoss& a, const Launch& /*on*/) {
  const int64_t N = a.kinds.numel(), T = a.kinds.shape[1];
  const int32_t *documents = a.documents.as<int32_t>(), *kinds = a.kinds.as<int32_t>(),
                *targets = a.targets.as<int32_t>();
  float *weights = a.weights.as<float>(), *figures = a.figures.as<float>();
  std::fill(weights, weights + N, 0.0f);
  std::fill(figures, figures + PreferenceFigures::kCount * N, 0.0f);
  const PairRows rows{targets, a.losses.as<float>(), a.reference.as<float>()};
  for (int64_t n = 0; n < N; ++n) {
    const int64_t t = n % T, row = n - t;
    if (kinds[n] != static_cast<int32_t>(DocumentKind::kChosen) || documents[2 * n] != t) continue;
    const int64_t middle = row + documents[2 * n + 1];
    check(middle < row + T && kinds[middle] == static_cast<int32_t>(DocumentKind::kRejected),
          "{}: no rejected document follows the chosen one at row {}", a.kName, n);
    const int64_t end = row + documents[2 * middle + 1];
    const PreferenceFigures found =
        preference_figures(a.rule, preference_side(rows, n, middle), preference_side(rows, middle, end));
    for (int i = 0; i < PreferenceFigures::kCount; ++i) figures[i * N + n] = static_cast<float>(found.at(i));
    std::fill(weights + n, weights + middle, static_cast<float>(-found.d_chosen));
    std::fill(weights + middle, weights + end, static_cast<float>(-found.d_rejected));
  }
}

}  // namespace tessera::cpu
