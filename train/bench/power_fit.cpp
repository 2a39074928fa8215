#include "train/bench/power_fit.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"

namespace tessera {

std::optional<PowerFit> fit_power(std::span<const std::pair<double, double>> points) {
  if (points.empty()) return std::nullopt;
  const auto count = static_cast<double>(points.size());
  double mean_x = 0, mean_y = 0;
  for (const auto& [x, y] : points) {
    check(x > 0 && y > 0, "the points of a power law must be positive, found ({}, {})", x, y);
    mean_x += std::log2(x) / count;
    mean_y += std::log2(y) / count;
  }
  double xx = 0, xy = 0, yy = 0;  // sums of products of the distances from the means
  for (const auto& [x, y] : points) {
    const double dx = std::log2(x) - mean_x, dy = std::log2(y) - mean_y;
    xx += dx * dx;
    xy += dx * dy;
    yy += dy * dy;
  }
  const auto [least, largest] = std::minmax_element(points.begin(), points.end());
  if (least->first == largest->first) return std::nullopt;
  return PowerFit{.exponent = xy / xx,
                  .r_squared = yy > 0 ? xy * xy / (xx * yy) : 1,  // equal y lie on a level line
                  .doublings = std::log2(largest->first / least->first),
                  .points = static_cast<int64_t>(points.size())};
}

}  // namespace tessera
