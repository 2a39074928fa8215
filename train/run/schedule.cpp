#include "train/run/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/base/check.h"

namespace tessera {

double learning_rate_at(int64_t step, int64_t steps, const Config::Optimizer& o) {
  // A warm-up of one step is none: its only step has the full rate.
  const int64_t warmup = std::max<int64_t>(1, o.warmup.of(steps));
  if (step < warmup) return o.learning_rate * static_cast<double>(step + 1) / static_cast<double>(warmup);
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
      return fall(progress(warmup));
    case Schedule::kCosine:
      return fall(0.5 * (1 - std::cos(std::numbers::pi * progress(warmup))));
    case Schedule::kWsd: {
      const int64_t decay = std::llround(o.decay_fraction * static_cast<double>(steps));
      const int64_t first = std::max(warmup, steps - decay);
      return step < first ? o.learning_rate : fall(progress(first));
    }
  }
  fail("an unknown schedule {}", static_cast<int>(o.schedule));
}

std::string warm_up_notice(int64_t steps, const Config::Optimizer& o) {
  const int64_t warmup = o.warmup.of(steps);
  if (warmup < steps || warmup <= 1) return "";
  const std::string length = o.warmup.percent > 0 ? fmt::format("{}%, {} steps", o.warmup.percent, warmup)
                                                  : fmt::format("{} steps", warmup);
  const std::string run = fmt::format("the run has {}", steps);
  if (warmup == steps)
    return fmt::format(
        "optimizer.warmup is {}, and {}: the learning rate rises to {:.3g} at the last step, and never "
        "falls. --set optimizer.warmup=3% warms up in a share of any run",
        length, run, o.learning_rate);
  return fmt::format(
      "optimizer.warmup is {}, and {}: the learning rate only rises, and its highest, at the last step, is "
      "{:.3g} in place of optimizer.learning_rate, {:.3g}. --set optimizer.warmup=3% warms up in a share of "
      "any run",
      length, run, learning_rate_at(steps - 1, steps, o), o.learning_rate);
}

}  // namespace tessera
