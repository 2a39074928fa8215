// Extended tables of positions, against sums done by hand.
#include "model/formats/positions.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/base/check.h"

namespace tessera {
namespace {

std::vector<float> extended(const char* kind, const std::vector<float>& table, int64_t channels,
                            int64_t rows) {
  std::vector<float> out(static_cast<size_t>(rows * channels), -1);
  extend_positions(parse_word<PositionExtension>("extension", kind), table, channels, out);
  return out;
}

TEST(Positions, InterpolateMeetsBothEnds) {
  EXPECT_EQ(extended("interpolate", {0, 10, 8, 30}, 2, 5),
            (std::vector<float>{0, 10, 2, 15, 4, 20, 6, 25, 8, 30}));
  EXPECT_EQ(extended("interpolate", {7}, 1, 3), (std::vector<float>{7, 7, 7}));
}

TEST(Positions, RepeatCopies) {
  EXPECT_EQ(extended("repeat", {1, 2, 3}, 1, 8), (std::vector<float>{1, 2, 3, 1, 2, 3, 1, 2}));
  EXPECT_EQ(extended("repeat", {1, 2, 3, 4}, 2, 3), (std::vector<float>{1, 2, 3, 4, 1, 2}));
}

TEST(Positions, BlendLetsCopiesOverlap) {
  std::vector<float> table(16);
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<float>(3 * i);
  // Two of sixteen rows overlap, so a copy begins every 14 rows and takes over by thirds.
  const std::vector<float> out = extended("blend", table, 1, 45);
  for (size_t i = 0; i < 14; ++i) EXPECT_EQ(out[i], table[i]);
  for (const size_t begin : {14u, 28u, 42u}) {
    EXPECT_FLOAT_EQ(out[begin], (2 * table[14] + table[0]) / 3);
    EXPECT_FLOAT_EQ(out[begin + 1], (table[15] + 2 * table[1]) / 3);
    for (size_t row = 2; row < 14 && begin + row < out.size(); ++row) EXPECT_EQ(out[begin + row], table[row]);
  }
  EXPECT_EQ(extended("blend", {1, 2, 3}, 1, 5),
            (std::vector<float>{1, 2, 3, 1, 2}));  // too few rows to overlap
}

TEST(Positions, OnlyMoreOfThem) {
  EXPECT_THROW(extended("none", {1, 2}, 1, 3), Error);
  EXPECT_THROW(extended("repeat", {1, 2}, 1, 2), Error);
}

}  // namespace
}  // namespace tessera
