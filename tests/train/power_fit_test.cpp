// The power that points grow with, against what is known by hand; and sequence lengths as users write them.
#include "train/bench/power_fit.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/base/check.h"
#include "tests/tolerances.h"
#include "train/bench/sequence_lengths.h"

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

TEST(SequenceLengths, AreListsAndDoublings) {
  using Lengths = std::vector<int64_t>;
  const std::pair<const char*, Lengths> good[] = {
      {"1024", {1024}},
      {"2048,512,512", {512, 2048}},
      {"512..4096", {512, 1024, 2048, 4096}},
      {"512..3000", {512, 1024, 2048, 3000}},
      {"7..7", {7}},
      {"3000,512..1024,100..150", {100, 150, 512, 1024, 3000}},
      {"1..10000000",
       {1,    2,     4,     8,     16,     32,     64,     128,     256,     512,     1024,    2048,    4096,
        8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576, 2097152, 4194304, 8388608, 10000000}}};
  for (const auto& [text, lengths] : good) EXPECT_EQ(parse_sequence_lengths(text), lengths) << text;
}

TEST(SequenceLengths, AnythingElseIsRefusedAndQuoted) {
  for (const char* text : {"",
                           ",",
                           "512,",
                           ",512",
                           "512,,1024",
                           "0",
                           "0..512",
                           "-512",
                           "+512",
                           " 512",
                           "512 ",
                           "5e2",
                           "1k",
                           "long",
                           "512..",
                           "..512",
                           "..",
                           "512...1024",
                           "512..1024..2048",
                           "1024..512",
                           "10000001",
                           "1..10000001",
                           "99999999999999999999",
                           "1..99999999999999999999",
                           "512.0"}) {
    try {
      parse_sequence_lengths(text);
      ADD_FAILURE() << "\"" << text << "\" was taken for lengths";
    } catch (const Error& error) {
      for (const char* part : {"--seq-lens", "512..65536", text})
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace tessera
