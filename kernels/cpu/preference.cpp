#include <algorithm>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/preference_side.h"

namespace tessera::cpu {

void run(const PreferenceLoss& a, const Launch& /*on*/) {
  const int64_t N = a.kinds.numel();
  float *weights = a.weights.as<float>(), *figures = a.figures.as<float>();
  std::fill(weights, weights + N, 0.0f);
  std::fill(figures, figures + PreferenceFigures::kCount * N, 0.0f);
  const PairRows rows{a.targets.as<int32_t>(), a.losses.as<float>(), a.reference.as<float>(),
                      a.stored.as<float>()};
  const auto* kinds = a.kinds.as<int32_t>();
  const double z =
      a.divergence ? mean_divergence(*a.divergence.as<float>(), *a.gradient_scale.as<float>()) : 0;
  for_each_pair(
      a.documents.as<int32_t>(), kinds, N, a.kinds.shape[1], [&](int64_t first, int64_t middle, int64_t end) {
        PreferenceFigures found = preference_figures(
            a.rule, {.chosen = preference_side(rows, first, middle),
                     .rejected = preference_side(rows, middle, end),
                     .is_desirable = kinds[first] != static_cast<int32_t>(DocumentKind::kUndesirable),
                     .divergence = z});
        if (a.pair_weights) found.weigh(static_cast<double>(a.pair_weights.as<float>()[first]));
        for (int i = 0; i < PreferenceFigures::kCount; ++i)
          figures[i * N + first] = static_cast<float>(found.at(i));
        std::fill(weights + first, weights + middle, static_cast<float>(-found.d_chosen));
        std::fill(weights + middle, weights + end, static_cast<float>(-found.d_rejected));
      });
}

}  // namespace tessera::cpu
