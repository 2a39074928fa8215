// Fits a power of x to measured points y.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>

namespace tessera {

struct PowerFit {
  double exponent = 0;   // y ~ x^exponent
  double r_squared = 0;  // the share of the variance of log2(y) that the fit explains; 1: all points lie on
                         // it
  double doublings = 0;  // how often x doubles from the smallest to the largest
  int64_t points = 0;
};

// Least squares of log2(y) on log2(x). Nothing if there are fewer than two different x. Error: an x or y is
// not positive.
std::optional<PowerFit> fit_power(std::span<const std::pair<double, double>> points);

}  // namespace tessera
