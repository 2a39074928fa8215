// The numbers of files: rounding to fp16 and q8_0, and what is refused.
#include "model/formats/number_format.h"

#include <bit>
#include <cmath>

#include "kernels/base/random.h"
#include "tests/data/support.h"

namespace tessera::testing {
namespace {

std::vector<std::byte> encoded(NumberFormat format, const std::vector<float>& values) {
  std::vector<std::byte> all;
  encode(format, values, "w",
         [&](std::span<const std::byte> bytes) { all.insert(all.end(), bytes.begin(), bytes.end()); });
  return all;
}

std::vector<float> through(NumberFormat format, const std::vector<float>& values) {
  std::vector<float> out(values.size());
  decode(format, encoded(format, values), out);
  return out;
}

TEST(NumberFormat, EveryHalfSurvives) {
  for (uint32_t half = 0; half < 0x10000; ++half) {
    const float value = float_from_half(static_cast<uint16_t>(half));
    if (std::isnan(value))
      EXPECT_TRUE(std::isnan(float_from_half(half_from_float(value))));
    else
      ASSERT_EQ(half_from_float(value), half);
  }
}

// Between two neighbours the nearer one is taken, in the middle the even one.
TEST(NumberFormat, HalvesAreRoundedToNearestEven) {
  for (uint32_t half = 0; half < 0x7BFF; ++half) {
    const double below = float_from_half(static_cast<uint16_t>(half)),
                 above = float_from_half(static_cast<uint16_t>(half + 1));
    const auto middle = static_cast<float>((below + above) / 2);  // exact: one more bit
    ASSERT_EQ(half_from_float(middle), half % 2 == 0 ? half : half + 1) << middle;
    ASSERT_EQ(half_from_float(std::nextafter(middle, 0.0f)), half) << middle;
    ASSERT_EQ(half_from_float(std::nextafter(middle, 1e9f)), half + 1) << middle;
    ASSERT_EQ(half_from_float(-middle), 0x8000 | (half % 2 == 0 ? half : half + 1)) << middle;
  }
  EXPECT_EQ(half_from_float(65519.996f), 0x7BFF);
  EXPECT_EQ(half_from_float(65520.0f), 0x7C00);
  EXPECT_EQ(half_from_float(3e38f), 0x7C00);
}

TEST(NumberFormat, Q8IsWithinHalfAStepOfItsBlock) {
  std::vector<float> values(32 * 100);
  const Philox random(1, 0);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(random.normal(i) * std::exp2(static_cast<double>(i / 32 % 20) - 10));
  const std::vector<float> found = through(NumberFormat::kQ8, values);
  for (size_t block = 0; block < values.size(); block += 32) {
    float largest = 0;
    for (size_t i = block; i < block + 32; ++i) largest = std::max(largest, std::abs(values[i]));
    // Half a step of d = largest / 127, and what the rounding of d to fp16 moves the largest number by
    const double bound = largest / 127 * (0.5 + 127 * 0x1p-11) * (1 + 1e-6);
    for (size_t i = block; i < block + 32; ++i) ASSERT_NEAR(found[i], values[i], bound) << i;
  }
}

// d = 2 and numbers that are halves away from a whole one: away from zero, as in ggml
TEST(NumberFormat, AQ8BlockByHand) {
  std::vector<float> values(32, 0.0f);
  values[0] = 254;
  values[1] = -3;
  values[2] = 5;
  values[31] = -254;
  const std::vector<std::byte> bytes = encoded(NumberFormat::kQ8, values);
  ASSERT_EQ(bytes.size(), 34u);
  EXPECT_EQ(std::to_integer<int>(bytes[0]) | std::to_integer<int>(bytes[1]) << 8, 0x4000);  // 2 in fp16
  const auto number = [&](size_t i) { return static_cast<int8_t>(bytes[2 + i]); };
  EXPECT_EQ(number(0), 127);
  EXPECT_EQ(number(1), -2);
  EXPECT_EQ(number(2), 3);
  EXPECT_EQ(number(3), 0);
  EXPECT_EQ(number(31), -127);
  EXPECT_EQ(encoded(NumberFormat::kQ8, std::vector<float>(32, 0.0f)), std::vector<std::byte>(34));
}

TEST(NumberFormat, WhatDoesNotFitIsRefusedByName) {
  const auto refused = [](NumberFormat format, float value, std::initializer_list<std::string_view> words) {
    std::vector<float> values(size_t{1} << 18, 1.0f);  // one piece; the value is in the next
    values.resize(values.size() + 32, 0.5f);
    values[values.size() - 7] = value;
    expect_error([&] { encoded(format, values); }, words);
  };
  refused(NumberFormat::kF16, 65520, {"w: ", "value 262169 is 65520", "fp16", "--dtype bf16"});
  refused(NumberFormat::kBF16, -3.4e38f, {"w: ", "value 262169 is -3.4e+38", "bf16", "--dtype fp32"});
  refused(NumberFormat::kQ8, 9e6f, {"w: ", "value 262169 is 9000000", "q8_0", "--dtype bf16"});
  refused(NumberFormat::kF32, INFINITY, {"w ", "value 262169 is inf"});
  refused(NumberFormat::kQ8, NAN, {"w ", "value 262169 is nan"});
  EXPECT_NO_THROW(encoded(NumberFormat::kF16, {65519, -65519}));
  expect_error([] { encoded(NumberFormat::kQ8, {1, 2, 3}); }, {"3 values", "blocks of 32"});
}

}  // namespace
}  // namespace tessera::testing
