#include "train/run/schedule.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

Config::Optimizer optimizer(Schedule schedule) {
  Config::Optimizer o;
  o.schedule = schedule;
  o.learning_rate = 1.0;
  o.min_learning_rate = 0.1;
  o.warmup_steps = 10;
  o.decay_fraction = 0.2;
  return o;
}

TEST(Schedule, WarmsUpInAStraightLineToTheFullRate) {
  for (const Schedule schedule : values_with_words<Schedule>()) {
    EXPECT_DOUBLE_EQ(learning_rate_at(0, 110, optimizer(schedule)), 0.1) << name_of(schedule);
    EXPECT_DOUBLE_EQ(learning_rate_at(9, 110, optimizer(schedule)), 1.0) << name_of(schedule);
  }
}

TEST(Schedule, EndsAtTheMinimum) {
  for (const Schedule schedule : {Schedule::kCosine, Schedule::kLinear, Schedule::kWsd})
    EXPECT_NEAR(learning_rate_at(109, 110, optimizer(schedule)), 0.1, 1e-12) << name_of(schedule);
  EXPECT_DOUBLE_EQ(learning_rate_at(109, 110, optimizer(Schedule::kConstant)), 1.0);
}

TEST(Schedule, IsHalfwayInTheMiddle) {
  EXPECT_NEAR(learning_rate_at(59, 110, optimizer(Schedule::kCosine)), 0.55, 1e-9);
  EXPECT_NEAR(learning_rate_at(59, 110, optimizer(Schedule::kLinear)), 0.55, 1e-9);
}

TEST(Schedule, WsdIsFlatUntilItsDecay) {
  EXPECT_DOUBLE_EQ(learning_rate_at(87, 110, optimizer(Schedule::kWsd)),
                   1.0);  // the last 22 of 110 steps fall
  EXPECT_LT(learning_rate_at(88, 110, optimizer(Schedule::kWsd)), 1.0);
  EXPECT_NEAR(learning_rate_at(98, 110, optimizer(Schedule::kWsd)), 0.55, 1e-9);
}

TEST(Schedule, NeverRisesAfterTheWarmUp) {
  for (const Schedule schedule : values_with_words<Schedule>())
    for (int64_t step = 10; step < 110; ++step)
      EXPECT_LE(learning_rate_at(step, 110, optimizer(schedule)),
                learning_rate_at(step - 1, 110, optimizer(schedule)) + 1e-15)
          << name_of(schedule);
}

TEST(Schedule, NoWarmUpStartsAtTheFullRate) {
  Config::Optimizer o = optimizer(Schedule::kConstant);
  o.warmup_steps = 0;
  EXPECT_DOUBLE_EQ(learning_rate_at(0, 1, o), 1.0);
}

}  // namespace
}  // namespace tessera
