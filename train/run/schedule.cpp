#include "train/run/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/base/check.h"

namespace tessera {

double learning_rate_at(int64_t step, int64_t steps, const Config::Optimizer& o) {
  if (step < o.warmup_steps)
    return o.learning_rate * static_cast<double>(step + 1) / static_cast<double>(o.warmup_steps);
  const auto fall = [&](double p) { return o.learning_rate + (o.min_learning_rate - o.learning_rate) * p; };
  // The share of the steps from `first` to the last one that is done, 1 at the last.
  const auto progress = [&](int64_t first) {
    return std::clamp(
        static_cast<double>(step - first + 1) / static_cast<double>(std::max<int64_t>(1, steps - first)), 0.0,
        1.0);
  };
  switch (o.schedule) {
    case Schedule::kConstant:
      return o.learning_rate;
    case Schedule::kLinear:
      return fall(progress(o.warmup_steps));
    case Schedule::kCosine:
      return fall(0.5 * (1 - std::cos(std::numbers::pi * progress(o.warmup_steps))));
    case Schedule::kWsd: {
      const int64_t decay = std::llround(o.decay_fraction * static_cast<double>(steps));
      const int64_t first = std::max(o.warmup_steps, steps - decay);
      return step < first ? o.learning_rate : fall(progress(first));
    }
  }
  fail("an unknown schedule {}", static_cast<int>(o.schedule));
}

}  // namespace tessera
