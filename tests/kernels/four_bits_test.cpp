// RoundToFourBits and WidenFourBits on the CPU
#include <bit>
#include <cmath>
#include <limits>

#include "tests/four_bits_reference.h"

namespace tessera::testing {
namespace {

TEST(FourBits, ValuesAndBytesAreTheReferences) {
  const std::unique_ptr<Backend> be = make_cpu_backend();
  for (const FourBits format : kFourBits) expect_four_bits_of_reference(Stream(*be), format, DType::kF32);
}

TEST(FourBits, TakeTheNearestValue) {
  const std::unique_ptr<Backend> be = make_cpu_backend();
  for (const FourBits format : kFourBits)
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{1, 64}, {7, 192}, {33, 320}})
      expect_four_bits_by_definition(Stream(*be), format, rows, columns);
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{1, 32}, {7, 96}, {33, 288}})
    expect_four_bits_by_definition(Stream(*be), FourBits::kMxfp4, rows, columns);
}

TEST(FourBits, WidenedValuesAreRoundedToThemselves) {
  const std::unique_ptr<Backend> be = make_cpu_backend();
  for (const FourBits format : kFourBits) {
    HostTensors make;
    const Shape shape{5, 192};
    const InFourBits once =
        through_four_bits(Stream(*be), format, shape, floats(make.normal(shape, 3)), DType::kF32);
    EXPECT_EQ(through_four_bits(Stream(*be), format, shape, once.widened, DType::kF32).widened, once.widened);
  }
}

TEST(Nf4, EveryValueHasItsCodeAndABoundGoesDown) {
  for (uint32_t code = 0; code < 16; ++code) {
    EXPECT_EQ(nf4_code(nf4_value(code)), code);
    if (code == 15) continue;
    const float bound = (nf4_value(code) + nf4_value(code + 1)) / 2;
    EXPECT_EQ(nf4_code(bound), code);
    EXPECT_EQ(nf4_code(std::nextafter(bound, 2.0f)), code + 1);
  }
  EXPECT_EQ(nf4_inverse(0), 1 / 1e-38f);
}

TEST(Mxfp4, EveryValueHasItsCodeAndABoundGoesToTheEvenOne) {
  for (uint32_t code = 0; code < 8; ++code) {
    EXPECT_EQ(mxfp4_code(mxfp4_value(code)), code);
    EXPECT_EQ(mxfp4_code(mxfp4_value(code | 8)), code | 8);
    if (code == 7) continue;
    const float bound = (mxfp4_value(code) + mxfp4_value(code + 1)) / 2;
    EXPECT_EQ(mxfp4_code(bound), code + code % 2);
    EXPECT_EQ(mxfp4_code(std::nextafter(bound, 9.0f)), code + 1);
    EXPECT_EQ(mxfp4_code(std::nextafter(bound, 0.0f)), code);
  }
}

// Of each power of two what lies just below and above 6 times it
TEST(Mxfp4, TheLargestMagnitudeIsAtMostSix) {
  const auto scale = [](float largest) { return mxfp4_scale(std::bit_cast<uint32_t>(largest)); };
  for (int e = 0; e < 253; ++e) {
    const float six = std::ldexp(6.0f, e - 127);
    EXPECT_EQ(scale(six), e);
    EXPECT_EQ(scale(std::nextafter(six, 0.0f)), e);
    EXPECT_TRUE(e == 252 || scale(std::nextafter(six, INFINITY)) == e + 1) << e;
    EXPECT_EQ(float_of_bits(mxfp4_scale_bits(static_cast<uint32_t>(e))), std::ldexp(1.0f, e - 127));
    EXPECT_EQ(float_of_bits(mxfp4_inverse_bits(static_cast<uint32_t>(e))), std::ldexp(1.0f, 127 - e));
  }
  EXPECT_EQ(scale(0), 0);
  EXPECT_EQ(scale(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(scale(std::numeric_limits<float>::max()), 253);
  for (const float none : {INFINITY, NAN}) EXPECT_EQ(scale(none), kNoMxfp4Scale);
  EXPECT_TRUE(std::isnan(float_of_bits(mxfp4_scale_bits(kNoMxfp4Scale))));
}

}  // namespace
}  // namespace tessera::testing
