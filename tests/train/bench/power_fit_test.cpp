// The power that points grow with, against what is known by hand.
#include "train/bench/power_fit.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/base/check.h"
#include "tests/tolerances.h"

namespace tessera {
namespace {

using Points = std::vector<std::pair<double, double>>;

// Points whose logarithms to base 2 these are
Points from_logarithms(const Points& logarithms) {
  Points points;
  for (const auto& [x, y] : logarithms) points.push_back({std::exp2(x), std::exp2(y)});
  return points;
}

TEST(PowerFit, FindsExactPowers) {
  for (const double power : {-1.0, 0.5, 1.0, 2.0, 3.0}) {
    Points points;
    for (double n = 64; n <= 65536; n *= 2) points.push_back({n, 48 * std::pow(n, power)});
    const auto fit = fit_power(points);
    ASSERT_TRUE(fit);
    EXPECT_NEAR(fit->exponent, power, tolerance::kExactPower);
    EXPECT_NEAR(fit->r_squared, 1, tolerance::kExactPower);
    EXPECT_EQ(fit->doublings, 10);
    EXPECT_EQ(fit->points, 11);
  }
}

TEST(PowerFit, OfNoisyPointsIsThatOfLeastSquares) {
  // 1.5 x and noise of (1, -2, 1) / 2, which is orthogonal to x and to constants: variance 4.5 + 1.5
  const auto orthogonal = fit_power(from_logarithms({{0, 0.5}, {1, 0.5}, {2, 3.5}}));
  EXPECT_NEAR(orthogonal->exponent, 1.5, tolerance::kExactPower);
  EXPECT_NEAR(orthogonal->r_squared, 4.5 / 6, tolerance::kExactPower);
  // Deviations from the means: x -1.5 -0.5 0.5 1.5, y -1.75 -0.75 0.25 2.25; sums xx 5, xy 6.5, yy 8.75
  const auto bent = fit_power(from_logarithms({{3, 4}, {0, 0}, {2, 2}, {1, 1}}));
  EXPECT_NEAR(bent->exponent, 6.5 / 5, tolerance::kExactPower);
  EXPECT_NEAR(bent->r_squared, 6.5 * 6.5 / (5 * 8.75), tolerance::kExactPower);
  EXPECT_EQ(bent->doublings, 3);
}

TEST(PowerFit, OfALevelLineIsZero) {
  const auto fit = fit_power(Points{{1, 7}, {2, 7}, {4, 7}});
  EXPECT_EQ(fit->exponent, 0);
  EXPECT_EQ(fit->r_squared, 1);
}

TEST(PowerFit, WantsTwoLengthsAndPositivePoints) {
  EXPECT_FALSE(fit_power(Points{}));
  EXPECT_FALSE(fit_power(Points{{64, 1}}));
  EXPECT_FALSE(fit_power(Points{{64, 1}, {64, 2}}));
  EXPECT_TRUE(fit_power(Points{{64, 1}, {128, 2}}));
  EXPECT_THROW(fit_power(Points{{64, 1}, {128, 0}}), Error);
  EXPECT_THROW(fit_power(Points{{0, 1}, {128, 1}}), Error);
}

}  // namespace
}  // namespace tessera
