#include "train/run/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace tessera {
namespace {

Config::Optimizer optimizer(Schedule schedule) {
  Config::Optimizer o;
  o.schedule = schedule;
  o.learning_rate = 1.0;
  o.min_learning_rate = 0.1;
  o.warmup.steps = 10;
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
  for (const Schedule schedule : values_with_words<Schedule>())
    for (const double decay_fraction : {0.2, 1.0})
      for (const int64_t steps : {1, 2, 3, 100}) {
        Config::Optimizer none = optimizer(schedule), one = none;
        none.decay_fraction = one.decay_fraction = decay_fraction;
        none.warmup.steps = 0, one.warmup.steps = 1;
        EXPECT_EQ(learning_rate_at(0, steps, none), 1.0) << name_of(schedule) << " " << steps;
        for (int64_t step = 0; step < steps; ++step)  // its only step has the full rate, too
          EXPECT_EQ(learning_rate_at(step, steps, none), learning_rate_at(step, steps, one));
        const bool falls = schedule == Schedule::kWsd
                               ? std::llround(decay_fraction * static_cast<double>(steps)) > 0
                               : schedule != Schedule::kConstant;
        EXPECT_NEAR(learning_rate_at(steps - 1, steps, none), falls && steps > 1 ? 0.1 : 1.0, 1e-12)
            << name_of(schedule) << " " << steps;
      }
}

// The formula of a warm-up of at least one step, as runs have used it
TEST(Schedule, KeepsItsBits) {
  const Config::Optimizer o = optimizer(Schedule::kCosine);
  for (int64_t step = 10; step < 110; ++step) {
    const double p = static_cast<double>(step - 10 + 1) / 100.0;
    EXPECT_EQ(learning_rate_at(step, 110, o),
              1.0 + (0.1 - 1.0) * (0.5 * (1 - std::cos(std::numbers::pi * p))));
  }
}

TEST(Schedule, AWarmUpMayBeAShareOfTheRun) {
  Config::Optimizer o = optimizer(Schedule::kLinear), ten = o;
  o.warmup = {.percent = 2.5};
  for (int64_t step = 0; step < 400; ++step)
    EXPECT_EQ(learning_rate_at(step, 400, o), learning_rate_at(step, 400, ten)) << step;
  for (int64_t steps = 1; steps < 3000; ++steps)  // exact where the share is whole, else to the nearest
    EXPECT_EQ((WarmUp{.percent = 7}).of(steps), (14 * steps + 100) / 200) << steps;
  EXPECT_EQ((WarmUp{.percent = 100}).of(77), 77);
}

TEST(Schedule, AWarmUpAsLongAsTheRunIsNoticed) {
  Config::Optimizer o = optimizer(Schedule::kCosine);
  EXPECT_EQ(warm_up_notice(11, o), "");
  EXPECT_NE(warm_up_notice(10, o).find("rises to 1"), std::string::npos);
  EXPECT_NE(warm_up_notice(4, o).find("is 0.4"), std::string::npos) << warm_up_notice(4, o);
  o.warmup = {.percent = 100};
  EXPECT_NE(warm_up_notice(4, o).find("100%, 4 steps"), std::string::npos) << warm_up_notice(4, o);
  EXPECT_EQ(warm_up_notice(1, o), "");
  o.warmup = {};
  EXPECT_EQ(warm_up_notice(1, o), "");
}

}  // namespace
}  // namespace tessera
