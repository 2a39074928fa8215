#include "train/run/recent_steps.h"

#include <algorithm>
#include <cmath>

namespace tessera {
namespace {

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

constexpr double kLeastDeviation = 1e-9;  // of a window of zeros

struct Spread {
  double median, deviation;
};
Spread spread_of(const std::vector<double>& values) {
  constexpr double kDeviationsOfMad = 1.4826;
  const double median = median_of(values);
  std::vector<double> distances;
  for (const double value : values) distances.push_back(std::abs(value - median));
  return {median, std::max({kDeviationsOfMad * median_of(distances), RecentSteps::kFlat * std::abs(median),
                            kLeastDeviation})};
}

bool are_enough(const RecentSteps& recent) { return recent.losses.size() >= RecentSteps::kLeast; }

}  // namespace

void RecentSteps::add(double loss, double grad_norm) {
  losses.push_back(loss);
  grad_norms.push_back(grad_norm);
  if (losses.size() <= kMost) return;
  losses.erase(losses.begin());
  grad_norms.erase(grad_norms.begin());
}

SpikeScores scores_of(const RecentSteps& recent, double loss, double grad_norm) {
  if (!are_enough(recent)) return {};
  const auto score = [](const std::vector<double>& values, double x) {
    const Spread spread = spread_of(values);
    return (x - spread.median) / spread.deviation;
  };
  return {.loss = score(recent.losses, loss), .grad_norm = score(recent.grad_norms, grad_norm)};
}

StepLimits limits_of(const RecentSteps& recent, double score) {
  if (!are_enough(recent)) return {};
  const auto limit = [&](const std::vector<double>& values) {
    const Spread spread = spread_of(values);
    return spread.median + score * spread.deviation;
  };
  return {.loss = limit(recent.losses), .grad_norm = limit(recent.grad_norms)};
}

}  // namespace tessera
