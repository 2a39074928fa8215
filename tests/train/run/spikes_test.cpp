// Runs over a text with a document of noise: a step of it is a spike.
#include <filesystem>
#include <random>

#include "tests/train_ranks.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int kNoisyStep = 70, kSteps = 90, kTokens = 768;  // of a step

struct Spikes : TrainRanks {
  Spikes() {
    const std::string text = read_file(folder / "text.txt");
    write("noise.txt", with_noise(text, {kNoisyStep}));
    write("twice.txt", with_noise(text, {kNoisyStep, kNoisyStep + 5}));
  }
  // In place of the tokens of these steps
  static std::string with_noise(std::string text, const std::vector<int>& steps) {
    std::minstd_rand random(7);
    for (const int step : steps)
      for (int i = (step - 1) * kTokens; i < step * kTokens; ++i)
        text[static_cast<size_t>(i)] = static_cast<char>(33 + random() % 94);
    return text;
  }
  static Words settings(const Words& more) {
    return with({"data.train=noise.txt", "data.shuffle=false", fmt::format("train.steps={}", kSteps),
                 fmt::format("train.tokens_per_step={}", kTokens), "evaluation.every=90",
                 "evaluation.at_start=false", "sampling.every=0", "checkpoint.every=25"},
                more);
  }
  std::vector<Json> lines(const std::string& run, const std::string& type) const {
    std::vector<Json> found;
    std::ifstream file(folder / run / "metrics.jsonl");
    for (std::string line; std::getline(file, line);)
      if (auto json = Json::parse(line); json["type"] == type) found.push_back(json);
    return found;
  }
  std::vector<int> skipped(const std::string& run) const {
    std::vector<int> steps;
    for (const Json& line : lines(run, "step"))
      if (line.contains("skipped")) steps.push_back(line["step"]);
    return steps;
  }
  double last_validation(const std::string& run) const {
    return lines(run, "evaluation").back()["validation_loss"];
  }
  std::string weights(const std::string& run) const {
    return read_file(folder / run / fmt::format("checkpoints/step_{:08}/model.safetensors", kSteps));
  }
  // As if the run had been killed after this step
  void forget_after(const std::string& run, int step) const {
    for (const int one : checkpoints(run))
      if (one > step) fs::remove_all(folder / run / fmt::format("checkpoints/step_{:08}", one));
  }
  void expect_same_when_resumed(const Words& command, const std::string& run, int from_step) const {
    const std::string bytes = weights(run);
    const std::vector<std::string> before = losses(run);
    forget_after(run, from_step);
    trains(with(command, {"--resume"}));
    EXPECT_EQ(losses(run), before) << "from step " << from_step;
    EXPECT_TRUE(weights(run) == bytes) << "from step " << from_step;
  }
};

// One rank, and two that split the weights
const std::vector<std::pair<int, Words>> kWays{{1, {}}, {2, {"parallel.shard=weights"}}};

TEST_F(Spikes, ASkippedStepLeavesNoTrace) {
  for (const auto& [ranks, more] : kWays) {
    const Words skip = with(settings({"train.on_bad_step.spike=skip"}), more);
    const std::string run = fmt::format("skip{}", ranks), clean = fmt::format("clean{}", ranks),
                      ignored = fmt::format("ignored{}", ranks);
    trains(by(ranks, run, skip));
    trains(by(ranks, clean, with(skip, {"data.train=text.txt"})));
    trains(by(ranks, ignored, with(settings({}), more)));
    EXPECT_EQ(skipped(run), std::vector{kNoisyStep});
    EXPECT_TRUE(skipped(clean).empty());
    EXPECT_TRUE(skipped(ignored).empty());
    EXPECT_NEAR(last_validation(run), last_validation(clean), 0.03 * last_validation(clean));
    const auto loss_after = [&](const std::string& of) {
      return lines(of, "step")[kNoisyStep]["loss"].get<double>();
    };
    EXPECT_GT(loss_after(ignored), loss_after(run)) << "the noise does no harm";
    const Json line = lines(run, "step")[kNoisyStep - 1];
    EXPECT_EQ(line["skipped"], "spike");
    EXPECT_GT(line["grad_norm_score"], 8);
    const std::string worst = line["worst_sequences"][0];
    EXPECT_NE(worst.find("noise.txt, tokens "), std::string::npos) << worst;
  }
}

TEST_F(Spikes, WhereThereIsNoneNothingChanges) {
  for (const auto& [ranks, more] : kWays) {
    const Words text = with({"data.train=text.txt"}, more);
    trains(by(ranks, "ignored", settings(text)));
    trains(by(ranks, "stop", with(settings(text), {"train.on_bad_step.spike=stop"})));
    EXPECT_EQ(losses("stop"), losses("ignored"));
    EXPECT_TRUE(weights("stop") == weights("ignored"));
    for (const char* run : {"ignored", "stop"}) fs::remove_all(folder / run);
  }
}

// The window of recent steps is a part of the checkpoint.
TEST_F(Spikes, AResumedRunSkipsTheSameSteps) {
  for (const auto& [ranks, more] : kWays) {
    const std::string run = fmt::format("out{}", ranks);
    const Words command = by(ranks, run, with(settings({"train.on_bad_step.spike=skip"}), more));
    trains(command);
    for (const int from : {75, 50}) expect_same_when_resumed(command, run, from);
    EXPECT_EQ(skipped(run), std::vector{kNoisyStep});
  }
}

TEST_F(Spikes, StopARun) {
  for (const auto& [ranks, more] : kWays) {
    const std::string run = fmt::format("out{}", ranks);
    refused(by(ranks, run, with(settings({"train.on_bad_step.spike=stop"}), more)),
            {"step 70: the loss is ", "with scores of ", "step_00000050", "they are the same", "  sequence ",
             "noise.txt, tokens 5"});
    EXPECT_EQ(lines(run, "step").size(), static_cast<size_t>(kNoisyStep - 1));
  }
}

TEST_F(Spikes, ARunMaySkipOnlySoMany) {
  const Words twice = settings({"data.train=twice.txt", "train.on_bad_step.spike=skip"});
  trains(by(1, "two", twice));
  EXPECT_EQ(skipped("two"), (std::vector{kNoisyStep, kNoisyStep + 5}));
  refused(by(1, "one", with(twice, {"train.on_bad_step.most_skips=1"})),
          {"step 75: the loss is ", "skipped 1 steps", "train.on_bad_step.most_skips"});
}

// Steps of another size have other norms: they are compared with steps of their own.
TEST_F(Spikes, StepsOfAnotherSizeAreAWindowOfTheirOwn) {
  const Words command = by(1, "out", settings({"train.on_bad_step.spike=skip"}));
  trains(command);
  const auto recent = [&](int step) {
    const Json state =
        Json::parse(read_file(folder / fmt::format("out/checkpoints/step_{:08}/state.json", step)));
    return state["recent_steps"]["losses"].size();
  };
  EXPECT_EQ(recent(50), 50u);
  EXPECT_EQ(recent(75), 74u);
  forget_after("out", 50);
  trains(with(command, {"--resume", "--set", "train.tokens_per_step=384", "--set", "train.steps=75"}));
  EXPECT_EQ(recent(75), 25u);
}

}  // namespace
}  // namespace tessera::testing
