#include "train/run/slow_ranks.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tessera {

double wait_for_slowest(std::span<const double> own) {
  const double slowest = *std::ranges::max_element(own);
  const double mean = std::accumulate(own.begin(), own.end(), 0.0) / static_cast<double>(own.size());
  return slowest > 0 ? 1 - mean / slowest : 0;
}

std::vector<SlowRanks::Slow> SlowRanks::add(std::span<const double> own) {
  sums_.resize(own.size());
  windows_.resize(own.size());
  told_.resize(own.size());
  for (size_t rank = 0; rank < own.size(); ++rank) sums_[rank] += own[rank];
  if (++steps_ < kSteps) return {};
  steps_ = 0;
  std::vector<double> means = std::exchange(sums_, {});
  for (double& each : means) each /= kSteps;
  std::vector<double> sorted = means;
  std::ranges::sort(sorted);
  const double median = sorted[(sorted.size() - 1) / 2];
  std::vector<Slow> found;
  for (size_t rank = 0; rank < means.size(); ++rank) {
    const bool slow = means[rank] > kSlow * median && means[rank] - median > kLeastSeconds;
    windows_[rank] = slow ? windows_[rank] + 1 : 0;
    if (windows_[rank] < kWindows || told_[rank]) continue;
    told_[rank] = true;
    found.push_back({.rank = static_cast<int64_t>(rank), .seconds = means[rank], .median = median});
  }
  return found;
}

}  // namespace tessera
