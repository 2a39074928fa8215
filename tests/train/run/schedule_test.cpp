#include "train/run/schedule.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

Config::Optimizer optimizer(const char* schedule) {
  Config::Optimizer o;
  o.schedule = schedule;
  o.learning_rate = 1.0;
  o.min_learning_rate = 0.1;
  o.warmup_steps = 10;
  o.decay_fraction = 0.2;
  return o;
}

TEST(Schedule, WarmsUpInAStraightLineToTheFullRate) {
  for (const char* name : {"cosine", "linear", "constant", "wsd"}) {
    EXPECT_DOUBLE_EQ(learning_rate_at(0, 110, optimizer(name)), 0.1) << name;
    EXPECT_DOUBLE_EQ(learning_rate_at(9, 110, optimizer(name)), 1.0) << name;
  }
}

TEST(Schedule, EndsAtTheMinimum) {
  for (const char* name : {"cosine", "linear", "wsd"})
    EXPECT_NEAR(learning_rate_at(109, 110, optimizer(name)), 0.1, 1e-12) << name;
  EXPECT_DOUBLE_EQ(learning_rate_at(109, 110, optimizer("constant")), 1.0);
}

TEST(Schedule, IsHalfwayInTheMiddle) {
  EXPECT_NEAR(learning_rate_at(59, 110, optimizer("cosine")), 0.55, 1e-9);
  EXPECT_NEAR(learning_rate_at(59, 110, optimizer("linear")), 0.55, 1e-9);
}

TEST(Schedule, WsdIsFlatUntilItsDecay) {
  EXPECT_DOUBLE_EQ(learning_rate_at(87, 110, optimizer("wsd")), 1.0);  // the last 22 of 110 steps fall
  EXPECT_LT(learning_rate_at(88, 110, optimizer("wsd")), 1.0);
  EXPECT_NEAR(learning_rate_at(98, 110, optimizer("wsd")), 0.55, 1e-9);
}

TEST(Schedule, NeverRisesAfterTheWarmUp) {
  for (const char* name : {"cosine", "linear", "constant", "wsd"})
    for (int64_t step = 10; step < 110; ++step)
      EXPECT_LE(learning_rate_at(step, 110, optimizer(name)),
                learning_rate_at(step - 1, 110, optimizer(name)) + 1e-15)
          << name;
}

TEST(Schedule, NoWarmUpStartsAtTheFullRate) {
  Config::Optimizer o = optimizer("constant");
  o.warmup_steps = 0;
  EXPECT_DOUBLE_EQ(learning_rate_at(0, 1, o), 1.0);
}

}  // namespace
}  // namespace tessera
