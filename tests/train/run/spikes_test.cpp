// Runs over a text with a document of noise: a step of it is a spike.
#include <filesystem>
#include <random>

#include "tests/train_ranks.h"
#include "train/run/bad_step_folder.h"
#include "train/run/run_state.h"

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
    return with(
        {"data.train=noise.txt", "data.shuffle=false", fmt::format("train.steps={}", kSteps),
         fmt::format("train.tokens_per_step={}", kTokens), "evaluation.every=90", "evaluation.at_start=false",
         "sampling.every=0", "checkpoint.every=25", "train.on_bad_step.spike_score=10"},
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
    trains(by(ranks, ignored, with(settings({"train.on_bad_step.spike_score=20"}), more)));
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
    EXPECT_GT(line["grad_norm_score"], 10);
    const std::string worst = line["worst_sequences"][0];
    EXPECT_NE(worst.find("noise.txt, tokens "), std::string::npos) << worst;
  }
}

TEST_F(Spikes, WhereThereIsNoneNothingChanges) {
  for (const auto& [ranks, more] : kWays) {
    const Words text = with({"data.train=text.txt"}, more);
    trains(by(ranks, "ignored", with(settings(text), {"train.on_bad_step.spike_score=20"})));
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

// To step 50, and on with the data after step 70
TEST_F(Spikes, ARunGoesBackToItsCheckpoint) {
  for (const auto& [ranks, more] : kWays) {
    const std::string run = fmt::format("back{}", ranks);
    const Words command = by(ranks, run, with(settings({"train.on_bad_step.spike=rewind"}), more));
    const ProcessResult result = trains(command);
    EXPECT_NE(result.out.find("step 70: the loss is "), std::string::npos) << result.out;
    EXPECT_NE(result.out.find("noise.txt, tokens "), std::string::npos) << result.out;
    trains(
        by(ranks, "clean", with(settings({"data.train=text.txt", "train.on_bad_step.spike=rewind"}), more)));
    EXPECT_NEAR(last_validation(run), last_validation("clean"), 0.05 * last_validation("clean"));
    const std::vector<Json> back = lines(run, "rewind"), steps = lines(run, "step");
    ASSERT_EQ(back.size(), 1u);
    EXPECT_EQ(back[0]["step"], 50);
    EXPECT_EQ(back[0]["bad_step"], kNoisyStep);
    EXPECT_EQ(back[0]["reason"], "spike");
    EXPECT_GT(back[0]["grad_norm_score"], 10);
    ASSERT_EQ(steps.size(), static_cast<size_t>(kSteps)) << "each step once";
    for (int i = 0; i < kSteps; ++i) EXPECT_EQ(steps[static_cast<size_t>(i)]["step"], i + 1);
    EXPECT_EQ(steps.back()["tokens"], kSteps * kTokens);
    const RunState end = read_run_state(folder / run / "checkpoints/step_00000090");
    EXPECT_EQ(end.rewinds, 1);
    EXPECT_EQ(end.passed_over_tokens, 20 * kTokens);
    EXPECT_EQ(end.data_position * end.sequence_length, (kSteps + 20) * kTokens);
    for (const int from : {75, 50}) expect_same_when_resumed(command, run, from);
    EXPECT_EQ(lines(run, "rewind").size(), 1u);
    fs::remove_all(folder / "clean");
  }
}

TEST_F(Spikes, ARunWithoutACheckpointGoesBackToItsStart) {
  const Words rewind = settings({"train.on_bad_step.spike=rewind", "checkpoint.every=0"});
  trains(by(1, "out", rewind));
  ASSERT_EQ(lines("out", "rewind").size(), 1u);
  EXPECT_EQ(lines("out", "rewind")[0]["step"], 0);
  EXPECT_EQ(lines("out", "step").size(), static_cast<size_t>(kSteps));
  // The same weights as at first, on the sequences after the bad step: those of a text that begins there
  const std::string text = read_file(folder / "noise.txt"), rest = text.substr(kNoisyStep * kTokens);
  write("rest.txt", rest);
  trains(by(1, "rest", with(rewind, {"data.train=rest.txt"})));
  const auto first_losses = [&](const std::string& run) {
    std::vector<double> found;
    for (const Json& line : lines(run, "step"))
      if (line["step"] <= 5) found.push_back(line["loss"]);
    return found;
  };
  EXPECT_EQ(first_losses("out"), first_losses("rest"));
}

// The second document of noise comes five steps after the run has gone back.
TEST_F(Spikes, ARunGoesBackOnlySoOften) {
  const Words twice = settings({"data.train=twice.txt", "train.on_bad_step.spike=rewind"});
  const Words command = by(1, "two", twice);
  trains(command);
  const std::vector<Json> back = lines("two", "rewind");
  ASSERT_EQ(back.size(), 2u);
  EXPECT_EQ(back[1]["step"], 50);
  EXPECT_EQ(back[1]["bad_step"], 55);
  expect_same_when_resumed(command, "two", 50);
  EXPECT_EQ(lines("two", "rewind").size(), 2u);
  refused(by(1, "one", with(twice, {"train.on_bad_step.most_rewinds=1"})),
          {"step 55: the loss is ", "gone back 1 times", "train.on_bad_step.most_rewinds"});
}

TEST_F(Spikes, EpochsAreAsLongAsWithoutGoingBack) {
  const Words command = by(
      1, "out",
      settings({"train.on_bad_step.spike=rewind", "train.steps=auto", "train.epochs=0.97"}));  // 89.8 steps
  trains(command);
  ASSERT_EQ(lines("out", "rewind").size(), 1u);
  EXPECT_EQ(lines("out", "step").size(), static_cast<size_t>(kSteps));
  expect_same_when_resumed(command, "out", 75);
}

TEST_F(Spikes, TheCheckpointBeforeOneIsKept) {
  const auto kept = [&](const std::string& rule, const std::string& data) {
    trains(by(1, rule + data,
              settings({"train.on_bad_step.spike=" + rule, "data.train=" + data, "checkpoint.keep=1"})));
    return checkpoints(rule + data);
  };
  EXPECT_EQ(kept("skip", "text.txt"), std::vector{90});
  EXPECT_EQ(kept("skip", "noise.txt"), (std::vector{50, 90}));
  EXPECT_EQ(kept("rewind", "noise.txt"), (std::vector{50, 90}));
  // A run that stopped, and is resumed
  const Words stop = settings({"train.on_bad_step.spike=stop", "checkpoint.keep=1"});
  EXPECT_EQ(train(by(1, "stopped", stop)).status, 1);
  EXPECT_EQ(checkpoints("stopped"), std::vector{50});
  trains(with(by(1, "stopped", with(stop, {"train.on_bad_step.spike=skip"})), {"--resume"}));
  EXPECT_EQ(checkpoints("stopped"), (std::vector{50, 90}));
}

struct Replays : Spikes {
  ProcessResult replays(const Words& words) const {
    return run_process(TRAIN_BINARY, with({"--replay"}, words), {.folder = folder});
  }
  void expect_replay(const Words& words, int status, std::initializer_list<const char*> parts) const {
    const ProcessResult result = replays(words);
    EXPECT_EQ(result.status, status) << result.out << result.error;
    for (const char* part : parts)
      EXPECT_NE((result.out + result.error).find(part), std::string::npos)
          << "wanted: " << part << "\nfound:  " << result.out << result.error;
  }
};

TEST_F(Replays, ASpikeIsOneAgain) {
  for (const auto& [ranks, more] : kWays) {
    const std::string run = fmt::format("out{}", ranks), bad = run + "/bad_step_00000070";
    refused(by(ranks, run, with(settings({"train.on_bad_step.spike=stop"}), more)),
            {("--replay " + bad).c_str()});
    fs::rename(folder / "noise.txt", folder / "gone.txt");  // the sequences are in the folder
    fs::create_directory(folder / "elsewhere");
    fs::rename(folder / bad, folder / "elsewhere/bad");
    expect_replay(
        {"elsewhere/bad"}, 1,
        {"step 70: the loss is ", "they are the same", "noise.txt, tokens ", "the step is bad again"});
    expect_replay({"elsewhere/bad", "--ranks", std::to_string(3 - ranks)}, 1,
                  {"the step is bad again", ranks == 1 ? "by 1 rank on CPU" : "by 2 ranks on CPU"});
    fs::remove_all(folder / "elsewhere");
    fs::rename(folder / "gone.txt", folder / "noise.txt");
  }
}

TEST_F(Replays, AnotherFolderIsRefused) {
  fs::create_directory(folder / "empty");
  expect_replay({"empty"}, 1, {"empty is not the folder of a bad step", "bad_step.json"});
  expect_replay({"nothing"}, 1, {"nothing is not the folder of a bad step"});
  EXPECT_EQ(train(by(1, "out", settings({"train.on_bad_step.spike=stop"}))).status, 1);
  const std::string bad = "out/bad_step_00000070";
  expect_replay({bad, "--set", "train.tokens_per_step=384"}, 1, {"24 sequences of 32", "12 of 32"});
  std::string batch = read_file(folder / bad / "batch.bin");
  EXPECT_EQ(batch.size(), 2u * 4 * kTokens);
  batch[100] = static_cast<char>(batch[100] + 1);
  write(bad + "/batch.bin", batch);
  expect_replay({bad}, 1, {"batch.bin is damaged"});
  fs::remove_all(folder / bad / "step_00000069");
  expect_replay({bad}, 1, {"batch.bin is damaged"});
  EXPECT_EQ(train(by(1, "out", settings({"train.on_bad_step.spike=stop"}))).status, 1) << "it needs --resume";
  EXPECT_EQ(train(with(by(1, "out", settings({"train.on_bad_step.spike=stop"})), {"--resume"})).status, 1);
  expect_replay({bad}, 1, {"the step is bad again"});  // it has replaced the damaged one
}

// Each restart of a run that the same step stops: one folder, which is the newest.
TEST_F(Replays, RestartsKeepOneFolder) {
  const Words stop = settings({"train.on_bad_step.spike=stop"});
  const std::string bad = "out/bad_step_00000070";
  const auto folders = [&] {
    int count = 0;
    for (const auto& one : fs::directory_iterator(folder / "out"))
      count += one.path().filename().string().starts_with("bad_step_");
    return count;
  };
  EXPECT_EQ(train(by(1, "out", stop)).status, 1);
  for (const int ranks : {1, 2, 1}) {
    EXPECT_EQ(train(with(by(ranks, "out", stop), {"--resume", "auto"})).status, 1);
    EXPECT_EQ(folders(), 1);
    expect_replay({bad}, 1, {ranks == 1 ? "by 1 rank on CPU" : "by 2 ranks on CPU", "the step is bad again"});
  }
  // What somebody has put there is kept, with all that is beside it.
  write(bad + "/notes.txt", "mine");
  EXPECT_EQ(train(with(by(1, "out", stop), {"--resume"})).status, 1);
  EXPECT_EQ(folders(), 2);
  EXPECT_EQ(read_file(folder / bad / "notes.txt"), "mine");
  expect_replay({bad + "-2"}, 1, {"the step is bad again"});
}

// Every field, in a folder with checksums, and in one of an older version, which has none of this file.
TEST_F(Replays, ADamagedFieldIsRefused) {
  EXPECT_EQ(train(by(1, "out", settings({"train.on_bad_step.spike=stop"}))).status, 1);
  const fs::path bad = folder / "out/bad_step_00000070";
  const std::string text = read_file(bad / "bad_step.json");
  const auto facts = nlohmann::json::parse(text);
  const auto files = nlohmann::json::parse(read_file(bad / "checksums.json")).at("files");
  const auto refuses = [&](const char* fact) {
    try {
      read_bad_step(bad);
      ADD_FAILURE() << fact;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(fact), std::string::npos) << error.what();
    }
  };
  EXPECT_EQ(read_bad_step(bad).kept.ranks, 1);
  std::string flipped = text;
  flipped[flipped.size() / 2] = static_cast<char>(flipped[flipped.size() / 2] ^ 1);
  std::ofstream(bad / "bad_step.json") << flipped;
  refuses("bad_step.json is damaged");
  std::ofstream(bad / "bad_step.json") << text;
  fs::remove(bad / "checksums.json");
  refuses("checksums.json is missing");
  auto old = facts;
  old["format"] = "tessera bad step 1";
  old["files"] = files;
  old["files"].erase("bad_step.json");
  std::ofstream(bad / "bad_step.json") << old.dump();
  EXPECT_EQ(read_bad_step(bad).kept.ranks, 1);
  for (const auto& [key, value] : old.items()) {
    for (const auto& wrong : {nlohmann::json(), nlohmann::json(true), nlohmann::json::object()}) {
      if (wrong.is_null() && value.is_number_float()) continue;  // not finite
      auto changed = old;
      changed[key] = wrong;
      std::ofstream(bad / "bad_step.json") << changed.dump();
      refuses(key == "files" ? "checksums" : key.c_str());
    }
    auto changed = old;
    changed.erase(key);
    std::ofstream(bad / "bad_step.json") << changed.dump();
    refuses(key.c_str());
  }
  const ProcessResult result = replays({bad.string()});
  EXPECT_EQ(result.status, 1) << "it must not crash: " << result.error;
}

}  // namespace
}  // namespace tessera::testing
