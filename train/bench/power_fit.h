// Fits a power of x to measured points y.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>

namespace tessera {

struct PowerFit {
  double exponent = 0;   // y ~ x^exponent
  double r_squared = 0;  // share of the variance of log2(y) that the fit explains; 1: all points lie on it
  double doublings = 0;  // of x, from the smallest to the largest
  int64_t points = 0;
};

// Least squares of log2(y) on log2(x). None where fewer than two x
// differ. Error: an x or y that is not positive.
std::optional<PowerFit> fit_power(std::span<const std::pair<double, double>> points);

}  // namespace tessera
