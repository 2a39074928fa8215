// train.context_schedule in a configuration: how it is written, and what is refused.
#include <gtest/gtest.h>

#include "tests/train/config/config_file.h"
#include "train/config/config.h"

namespace tessera {
namespace {

struct ContextSchedule : ConfigFile {
  // A run of 1000 steps of 8192 tokens with a context of 4096
  static std::string with(const std::string& schedule) {
    return "model:\n  context: 4096\ntrain:\n  steps: 1000\n  tokens_per_step: 8192\n  context_schedule: " +
           schedule + "\n";
  }
  void expect_refused(const std::string& yaml, std::initializer_list<const char*> parts,
                      const std::vector<std::string>& overrides = {}) const {
    const std::string message = refusal(yaml, overrides);
    for (const char* part : parts)
      EXPECT_NE(message.find(part), std::string::npos) << message << "\n" << part;
  }
};

TEST_F(ContextSchedule, IsAMapOrAShortText) {
  const std::vector<ContextPhase> wanted{{0, 1024}, {800, 4096}};
  EXPECT_EQ(load(with("{0: 1024, 800: 4096}")).train.context_schedule, wanted);
  EXPECT_EQ(load(with("\n    0: 1024\n    800: 4096")).train.context_schedule, wanted);
  EXPECT_EQ(load(with("0:1024,800:4096")).train.context_schedule, wanted);
  EXPECT_EQ(load(with("none"), {"train.context_schedule=0:1024,800:4096"}).train.context_schedule, wanted);
  EXPECT_EQ(load(with("none"), {"train.context_schedule={0: 1024, 800: 4096}"}).train.context_schedule,
            wanted);
  EXPECT_TRUE(load(with("0:1024"), {"train.context_schedule=none"}).train.context_schedule.empty());
}

TEST_F(ContextSchedule, TellsThePhaseOfAStep) {
  const Config config = load(with("{0: 1024, 800: 4096, 900: 2048}"));
  EXPECT_EQ(config.sequence_length(), 4096);
  ASSERT_EQ(config.phases(), 3u);
  for (const auto& [step, phase] : {std::pair(0, 0u), {799, 0u}, {800, 1u}, {899, 1u}, {900, 2u}, {5000, 2u}})
    EXPECT_EQ(config.phase_after(step), phase) << step;
  for (const int64_t step : {0, 1, 799, 801, 1000}) EXPECT_FALSE(config.begins_phase(step)) << step;
  for (const int64_t step : {800, 900}) EXPECT_TRUE(config.begins_phase(step)) << step;
  EXPECT_EQ(config.of_phase(0).sequence_length(), 1024);
  EXPECT_EQ(config.of_phase(2).sequence_length(), 2048);
  const Config plain = load(with("none"));
  EXPECT_EQ(plain.phases(), 1u);
  EXPECT_FALSE(plain.begins_phase(800));
  EXPECT_EQ(plain.of_phase(0), plain);
}

TEST_F(ContextSchedule, RefusesWhatCannotBeMeant) {
  const char* example = "{0: 1024, 800: 8192}";
  for (const char* bad : {"800", "{}", "[1, 2]", "{a: 1}", "{0: 1024, 800: x}", "{0: -1}", "{0: 0}",
                          "0:1024,", "0:1024:3", "{0: [1]}", "\"\""})
    expect_refused(with(bad), {"run.yaml:6:21: train.context_schedule", example});
  expect_refused(with("{800: 1024}"), {"first phase", "found a phase after 800"});
  expect_refused(with("{0: 1024, 800: 2048, 800: 4096}"), {"follows", "after 800"});
  expect_refused(with("{0: 1024, 800: 1024}"), {"after 0 and 800 steps", "same length, 1024"});
  expect_refused(with("{0: 1024, 800: 8192}"),
                 {"train.context_schedule {0: 1024, 800: 8192}", "8192 tokens", "model.context 4096"});
  expect_refused(with("{0: 1024, 800: 3000}"),
                 {"train.tokens_per_step 8192", "multiple of 3000", "6000 and 9000"});
  expect_refused(with("{0: 1024, 800: 4096}"), {"4096 tokens", "train.micro_batch 4"},
                 {"train.micro_batch=4"});
  expect_refused(with("{0: 1024, 1000: 4096}"), {"after 1000 steps", "train.steps 1000"});
  expect_refused(with("0:1024"), {"train.sequence_length 1024"}, {"train.sequence_length=1024"});
  expect_refused(with("0:1024"), {"train.epochs 2"}, {"train.epochs=2", "train.steps=auto"});
}

}  // namespace
}  // namespace tessera
