// RoundScales on the CPU, and what it is made of
#include "tests/says.h"
#include "tests/small_scales_reference.h"

namespace tessera::testing {
namespace {

std::vector<float> values_of_codes() {
  std::vector<float> values;
  for (int code = 0; code < 256; ++code) values.push_back(small_scale_value(code));
  return values;
}

TEST(SmallScales, ValuesOfCodesAreTheReferences) {
  EXPECT_EQ(values_of_codes(), hex_floats(small_scales_reference()["values_of_codes"]));
}

TEST(SmallScales, EveryValueHasItsCodeAndOtherNumbersTheNearest) {
  const std::vector<float> values = values_of_codes();
  for (int code = 0; code < 256; ++code) {
    EXPECT_EQ(small_scale_code(values.data(), values[static_cast<size_t>(code)], 1), code);
    if (code == 255) continue;
    const float low = values[static_cast<size_t>(code)], high = values[static_cast<size_t>(code) + 1];
    EXPECT_EQ(small_scale_code(values.data(), low + 0.4f * (high - low), 1), code);
    EXPECT_EQ(small_scale_code(values.data(), low + 0.6f * (high - low), 1), code + 1);
    EXPECT_EQ(small_scale_code(values.data(), (low + high) / 2, 1) % 2, 0) << "of two the even one";
  }
  EXPECT_EQ(small_scale_code(values.data(), -1, 1), 0);
  EXPECT_EQ(small_scale_code(values.data(), 0, 0), 127) << "a group whose scales are all the mean";
}

TEST(SmallScales, BytesAreTheReferences) {
  const std::unique_ptr<Backend> be = make_cpu_backend();
  expect_small_scales_of_reference(Stream(*be));
  expect_matrix_of_reference(Stream(*be), DType::kF32);
}

// A group of equal scales is widened to the same scales, and the groups of one matrix do not affect those of
// another.
TEST(SmallScales, MatricesHaveGroupsOfTheirOwn) {
  const std::unique_ptr<Backend> be = make_cpu_backend();
  const LayerParts parts{257, 3, 255};
  std::vector<float> x(515, 0.5f);
  for (size_t i = 257; i < 260; ++i) x[i] = static_cast<float>(i);
  for (size_t i = 260; i < 515; ++i) x[i] = 8;
  const std::vector<uint32_t> found = small_scales_of(Stream(*be), x, parts);
  const SmallScalePlaces places(parts);
  EXPECT_EQ(places.words(), 129 + 4 + 3);
  const std::vector<float> values = values_of_codes();
  const auto* words = reinterpret_cast<const float*>(found.data());
  for (size_t i = 0; i < x.size(); ++i)
    EXPECT_NEAR(places.scale(words, values.data(), static_cast<int64_t>(i)), x[i], 0.01) << i;
  EXPECT_EQ(words[places.means_at()], 0.5f);
  EXPECT_EQ(words[places.means_at() + 1], 258);
  EXPECT_EQ(words[places.means_at() + 2], 8);
}

TEST(SmallScales, PartsThatDoNotFillAMatrixAreRefused) {
  EXPECT_EQ(words_of_scales(FourBits::kNf4, {4, 128}, {}), 8);
  EXPECT_EQ(words_of_scales(FourBits::kNf4, {4, 128}, {4}), 2 + 1 + 1);
  const auto refused = [](FourBits format, const LayerParts& parts,
                          std::initializer_list<std::string_view> facts) {
    try {
      words_of_scales(format, {4, 128}, parts);
      FAIL();
    } catch (const Error& error) {
      EXPECT_TRUE(says(error.what(), facts)) << error.what();
    }
  };
  refused(FourBits::kNf4, {3}, {"3", "4"});
  refused(FourBits::kMxfp4, {4}, {"NF4", "MXFP4"});
}

}  // namespace
}  // namespace tessera::testing
