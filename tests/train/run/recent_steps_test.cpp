#include "train/run/recent_steps.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera {
namespace {

// 1, 2, ..., `count` as losses, and ten times as much as norms
RecentSteps counting(int count) {
  RecentSteps recent;
  for (int i = 1; i <= count; ++i) recent.add(i, 10.0 * i);
  return recent;
}

TEST(RecentSteps, ScoresAreDistancesFromTheMedian) {
  const RecentSteps recent = counting(33);  // median 17, of the distances 8
  const SpikeScores scores = scores_of(recent, 17 + 8 * 1.4826 * 3, 170);
  EXPECT_NEAR(scores.loss, 3, 1e-12);
  EXPECT_EQ(scores.grad_norm, 0);
  const SpikeScores even = scores_of(counting(34), 0, 0);  // 17.5, and 8.5
  EXPECT_NEAR(even.loss, -17.5 / (1.4826 * 8.5), 1e-12);
  EXPECT_NEAR(even.grad_norm, even.loss, 1e-12);
}

TEST(RecentSteps, LimitsHaveTheScore) {
  const RecentSteps recent = counting(100);
  const StepLimits limits = limits_of(recent, 8);
  const SpikeScores scores = scores_of(recent, limits.loss, limits.grad_norm);
  EXPECT_NEAR(scores.loss, 8, 1e-12);
  EXPECT_NEAR(scores.grad_norm, 8, 1e-12);
}

TEST(RecentSteps, AreTooFewAtFirst) {
  const RecentSteps recent = counting(static_cast<int>(RecentSteps::kLeast) - 1);
  EXPECT_TRUE(std::isinf(limits_of(recent, 8).loss) && std::isinf(limits_of(recent, 8).grad_norm));
  EXPECT_EQ(scores_of(recent, 1e9, 1e9).loss, 0);
  EXPECT_FALSE(std::isinf(limits_of(counting(static_cast<int>(RecentSteps::kLeast)), 8).loss));
}

TEST(RecentSteps, TheOldestIsForgotten) {
  const RecentSteps recent = counting(static_cast<int>(RecentSteps::kMost) + 5);
  EXPECT_EQ(recent.losses.size(), RecentSteps::kMost);
  EXPECT_EQ(recent.losses.front(), 6);
  EXPECT_EQ(recent.grad_norms.back(), 10.0 * (RecentSteps::kMost + 5));
}

// A flat window would divide by nothing; one spike in it changes nothing.
TEST(RecentSteps, AFlatWindowHasAFloor) {
  RecentSteps recent;
  for (int i = 0; i < 40; ++i) recent.add(i == 7 ? 1e6 : 2, 1);
  EXPECT_NEAR(limits_of(recent, 8).loss, 2 * (1 + 8 * RecentSteps::kFlat), 1e-12);
  EXPECT_NEAR(scores_of(recent, 2.02, 1).loss, 2, 1e-9);
  recent = {};
  for (int i = 0; i < 40; ++i) recent.add(0, 0);
  EXPECT_EQ(scores_of(recent, 0, 0).loss, 0);
}

}  // namespace
}  // namespace tessera
