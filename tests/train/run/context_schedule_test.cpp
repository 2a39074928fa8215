// train.context_schedule in the train program: what a phase trains on, prints and saves, and how a run
// resumes.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/train_ranks.h"
#include "train/run/run_state.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

// 8 steps, of 8 sequences of 16 tokens and then of 4 of 32
constexpr const char* kSmall =
    "device: cpu\n"
    "model:\n  vocab_size: 257\n  context: 32\n  layers: 1\n  heads: 2\n  channels: 16\n"
    "data:\n  train: text.txt\n"
    "train:\n  folder: out\n  steps: 8\n  tokens_per_step: 128\n"
    "optimizer:\n  learning_rate: 1e-2\n  min_learning_rate: 1e-3\n  warmup_steps: 2\n"
    "evaluation:\n  every: 2\n  sequences: 4\nsampling:\n  every: 0\n"
    "checkpoint:\n  every: 2\n  keep: 0\n";
const std::string kPhases = "train.context_schedule=0:16,4:32";

struct ContextScheduleRun : TrainProgram {
  ContextScheduleRun() : TrainProgram(kSmall) {}

  std::string trains(const Words& settings, Words words = {}) const {
    for (const std::string& setting : settings) words.insert(words.end(), {"--set", setting});
    const ProcessResult result = train(words);
    EXPECT_EQ(result.status, 0) << result.out << result.error;
    return result.out;
  }
  fs::path checkpoint(const std::string& run, int64_t step) const {
    return folder / run / fmt::format("checkpoints/step_{:08}", step);
  }
  // As if the run had been killed after it saved this step: the metrics still have later steps.
  void kill_after(const std::string& run, int64_t step) const {
    for (int64_t later = step + 1; later <= 8; ++later) fs::remove_all(checkpoint(run, later));
  }
  std::string weights(const std::string& run) const {
    return read_file(checkpoint(run, 8) / "model.safetensors") +
           read_file(checkpoint(run, 8) / "optimizer.safetensors");
  }
};

TEST(PositionWithLength, CountsTheTokensAndRoundsUp) {
  RunState was;
  was.data_position = 100;
  was.sequence_length = 16;
  EXPECT_EQ(position_with_length(was, 16), 100);
  EXPECT_EQ(position_with_length(was, 32), 50);
  EXPECT_EQ(position_with_length(was, 8), 200);
  EXPECT_EQ(position_with_length(was, 48), 34);  // 33 sequences and a third
  EXPECT_EQ(position_with_length({}, 48), 0);
}

// By hand: train the first phase, change the length and the position in its checkpoint, resume.
TEST_F(ContextScheduleRun, EqualsTwoRunsByHand) {
  const std::string at_start = "evaluation.at_start=false";
  const std::string out = trains({kPhases, at_start});
  for (const char* part : {"sequence lengths by the steps done before: {0: 16, 4: 32}",
                           "phase 2 of train.context_schedule, sequences of 32 tokens from step 5 on"})
    EXPECT_NE(out.find(part), std::string::npos) << out;

  trains({"train.folder=hand", "train.sequence_length=16", at_start});
  kill_after("hand", 4);
  const fs::path state = checkpoint("hand", 4) / "state.json";
  auto json = nlohmann::json::parse(read_file(state));
  EXPECT_EQ(json["data_position"], 32);
  json["data_position"] = 16;
  json["sequence_length"] = 32;
  json["format"] = "tessera checkpoint 1";
  write("hand/checkpoints/step_00000004/state.json", json.dump());
  fs::remove(checkpoint("hand", 4) / "checksums.json");
  trains({"train.folder=hand", "train.sequence_length=32", at_start}, {"--resume"});
  EXPECT_EQ(losses("out"), losses("hand"));
  EXPECT_EQ(weights("out"), weights("hand"));
  const auto last = nlohmann::json::parse(read_file(checkpoint("out", 8) / "state.json"));
  EXPECT_EQ(last["data_position"], 32);  // 16 of each length's four steps
  EXPECT_EQ(last["sequence_length"], 32);

  // A run of one length becomes one with a schedule
  trains({"train.folder=later", "train.sequence_length=16", at_start});
  kill_after("later", 4);
  refused({"--resume", "--set", "train.folder=later", "--set", "train.sequence_length=32"},
          {"16 tokens", "32 at its step", "train.sequence_length=auto and train.context_schedule=0:16,4:32"});
  trains({"train.folder=later", kPhases, at_start}, {"--resume"});
  EXPECT_EQ(losses("later"), losses("out"));
  EXPECT_EQ(weights("later"), weights("out"));
}

// In each phase, and right at the change, where checkpoint.keep_best writes the checkpoint a second time
TEST_F(ContextScheduleRun, ResumesInTheRightPhase) {
  for (const char* keep_best : {"false", "true"}) {
    const Words settings{kPhases, fmt::format("checkpoint.keep_best={}", keep_best)};
    trains(settings, {"--overwrite"});
    const std::vector<std::string> wanted = losses("out");
    EXPECT_EQ(std::count_if(wanted.begin(), wanted.end(),
                            [](const std::string& line) { return line.starts_with("4 validation_loss"); }),
              2);  // at both lengths
    for (const int64_t step : {2, 4, 6}) {
      SCOPED_TRACE(fmt::format("keep_best {}, step {}", keep_best, step));
      fs::remove_all(folder / "again");
      fs::copy(folder / "out", folder / "again", fs::copy_options::recursive);
      kill_after("again", step);
      Words again = settings;
      again.push_back("train.folder=again");
      trains(again, {"--resume"});
      EXPECT_EQ(losses("again"), wanted);
      EXPECT_EQ(weights("again"), weights("out"));
      auto state = [&](const char* run) {
        return nlohmann::json::parse(read_file(checkpoint(run, 8) / "state.json"));
      };
      EXPECT_EQ(state("again"), state("out"));
    }
  }
}

TEST_F(ContextScheduleRun, TheBestStepIsOfTheLastPhase) {
  trains({kPhases, "checkpoint.keep_best=true", "optimizer.learning_rate=1e-6",
          "optimizer.min_learning_rate=0"});
  const auto state = nlohmann::json::parse(read_file(checkpoint("out", 8) / "state.json"));
  EXPECT_GE(state["best"]["step"], 4);
  const auto before = nlohmann::json::parse(read_file(checkpoint("out", 2) / "state.json"));
  EXPECT_EQ(before["best"]["step"], 2);
}

TEST_F(ContextScheduleRun, PlansEveryPhase) {
  const auto plan = [&](Words words) {
    words.insert(words.begin(), {"--plan", "--set", kPhases, "--set", "train.micro_batch=4"});
    return train(words);
  };
  const ProcessResult fits = plan({"--json", "plan.json"});
  EXPECT_EQ(fits.status, 0) << fits.error;
  for (const char* part : {"1 of 2", "16 tokens", "step 1", "2 of 2", "32 tokens", "step 5"})
    EXPECT_NE(fits.out.find(part), std::string::npos) << fits.out;
  const auto json = nlohmann::json::parse(read_file(folder / "plan.json"));
  ASSERT_EQ(json["phases"].size(), 2u);
  EXPECT_EQ(json["phases"][1]["from_step"], 4);
  EXPECT_EQ(json["phases"][1]["sequence_length"], 32);

  // Between the two: a micro-batch of longer sequences takes more
  const auto peak = [&](size_t phase) { return json["phases"][phase]["peak_bytes"].get<int64_t>(); };
  ASSERT_NE(peak(0), peak(1));
  const ProcessResult too_much =
      plan({"--device-memory", fmt::format("{}B", (peak(0) + peak(1)) / 2), "--set", "device=cpu"});
  EXPECT_EQ(too_much.status, 2) << too_much.out << too_much.error;
  const ProcessResult fit = plan({"--fit", "batch", "--device-memory", "1GiB"});
  EXPECT_EQ(fit.status, 1);
  EXPECT_NE(fit.error.find("train.context_schedule has 2"), std::string::npos) << fit.error;
}

TEST_F(ContextScheduleRun, RefusesALaterPhaseBeforeTheRunStarts) {
  write("text.txt", std::string(600, 'a'));  // 30 held out: a sequence of 16, none of 32
  refused({"--set", kPhases}, {"sequence of length 32"});
  EXPECT_FALSE(fs::exists(folder / "out/metrics.jsonl"));
}

struct ContextScheduleRanks : TrainRanks {};

TEST_F(ContextScheduleRanks, ChangeTogether) {
  const Words settings{"train.steps=8",      "train.context_schedule=0:16,4:32",
                       "evaluation.every=4", "sampling.every=0",
                       "checkpoint.every=0", "train.micro_batch=4"};
  trains(by(1, "alone", settings));
  trains(by(2, "pair", settings));
  EXPECT_EQ(checkpoints("pair"), (std::vector<int>{4, 8}));
  for (const char* key : {"loss", "validation_loss"}) {
    const std::vector<double> alone = values("alone", key), pair = values("pair", key);
    ASSERT_EQ(alone.size(), pair.size()) << key;
    for (size_t i = 0; i < alone.size(); ++i) EXPECT_NEAR(alone[i], pair[i], 1e-5) << key << " " << i;
  }
  const std::vector<std::string> wanted = losses("pair");
  fs::remove_all(folder / "pair/checkpoints/step_00000008");
  trains(with(by(2, "pair", settings), {"--resume"}));
  EXPECT_EQ(losses("pair"), wanted);
}

}  // namespace
}  // namespace tessera::testing
