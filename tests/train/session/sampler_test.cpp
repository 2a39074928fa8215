#include "train/session/sampler.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera {
namespace {

TEST(Sampler, DrawsWithTheProbabilitiesOfTheSoftmax) {
  const std::vector<float> logits{0, std::log(2.0f), std::log(5.0f)};
  std::vector<int> counts(3);
  for (int i = 0; i < 8000; ++i) ++counts[static_cast<size_t>(draw_token(logits, 1.0, 0, (i + 0.5) / 8000))];
  EXPECT_NEAR(counts[0], 1000, 2);
  EXPECT_NEAR(counts[1], 2000, 2);
  EXPECT_NEAR(counts[2], 5000, 2);
}

TEST(Sampler, TopKAndTemperatureNarrow) {
  const std::vector<float> logits{1, 3, 2, 0};
  for (int i = 0; i < 100; ++i) {
    const double uniform = (i + 0.5) / 100;
    EXPECT_EQ(draw_token(logits, 0, 0, uniform), 1);
    EXPECT_EQ(draw_token(logits, 1, 1, uniform), 1);
    EXPECT_EQ(draw_token(logits, 0.01, 0, uniform), 1);
    EXPECT_NE(draw_token(logits, 100, 2, uniform), 0);
  }
}

}  // namespace
}  // namespace tessera
