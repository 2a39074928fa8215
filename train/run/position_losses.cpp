#include "train/run/position_losses.h"

#include <cmath>

#include "kernels/base/check.h"

namespace tessera {
namespace {

// "65 to 128"; `ends` are of position_ends()
std::string range_text(const std::vector<int64_t>& ends, size_t range) {
  const int64_t first = range == 0 ? 1 : ends[range - 1] + 1;
  return first == ends[range] ? fmt::format("{}", first) : fmt::format("{} to {}", first, ends[range]);
}

}  // namespace

std::vector<int64_t> position_ends(int64_t T) {
  std::vector<int64_t> ends;
  for (int64_t end = 1; end < T; end *= 2) ends.push_back(end);
  ends.push_back(T);
  return ends;
}

std::vector<double> sums_by_range(std::span<const double> by_position) {
  std::vector<double> sums;
  int64_t at = 0;
  for (const int64_t end : position_ends(std::ssize(by_position))) {
    double sum = 0;
    for (; at < end; ++at) sum += by_position[static_cast<size_t>(at)];
    sums.push_back(sum);
  }
  return sums;
}

PositionLosses position_losses(int64_t step, int64_t T, std::span<const double> sums,
                               std::span<const double> tokens) {
  PositionLosses found{.step = step, .ends = position_ends(T), .losses = {}};
  for (size_t i = 0; i < sums.size(); ++i) found.losses.push_back(sums[i] / tokens[i]);
  return found;
}

std::string position_table(const PositionLosses& of, const std::string& title) {
  std::string text =
      title.empty() ? fmt::format("validation loss by position, after step {}", of.step) : title;
  for (size_t i = 0; i < of.losses.size(); ++i)
    text += fmt::format("\n  {:<20} {:>8.4f}", range_text(of.ends, i), of.losses[i]);
  const size_t last = of.losses.size() - 1;
  if (last == 0) return text;
  const double profit = of.losses[last - 1] - of.losses[last];
  return text + fmt::format("\n  positions {} have {:.4f} {} loss than {}", range_text(of.ends, last),
                            std::abs(profit), profit >= 0 ? "less" : "more", range_text(of.ends, last - 1));
}

}  // namespace tessera
