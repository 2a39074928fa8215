// The train program resumes, refuses, keeps and locks: run as its users run it.
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/train_program.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

struct Resume : TrainProgram {
  Resume()
      : TrainProgram(
            "device: cpu\n"
            "model:\n  vocab_size: 257\n  context: 16\n  layers: 1\n  heads: 2\n  channels: 16\n"
            "data:\n  train: text.txt\n"
            "train:\n  folder: out\n  steps: 4\n  tokens_per_step: 64\n  micro_batch: 4\n"
            "optimizer:\n  learning_rate: 1e-2\n  min_learning_rate: 1e-3\n  warmup_steps: 2\n"
            "evaluation:\n  every: 2\n  sequences: 4\nsampling:\n  every: 0\n"
            "checkpoint:\n  every: 2\n  keep: 0\n") {}

  std::string trains(const std::vector<std::string>& arguments) {
    const ProcessResult result = train(arguments);
    EXPECT_EQ(result.status, 0) << result.out << result.error;
    return result.out;
  }
  static void expect_parts(const std::string& text, std::initializer_list<const char*> parts) {
    for (const char* part : parts)
      EXPECT_NE(text.find(part), std::string::npos) << text << "\nlacks: " << part;
  }
  std::set<std::string> checkpoints() const {
    std::set<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder / "out/checkpoints"))
      found.insert(entry.path().filename().string());
    return found;
  }
  std::string text() const { return read_file(folder / "text.txt"); }
};

TEST_F(Resume, ComparesTheDataAndNotItsPath) {
  trains({});
  const std::string content = text();
  write("elsewhere.txt", content);
  write("longer.txt", content + "x");
  std::string changed = content;
  changed[content.size() / 2] ^= 1;
  const std::vector<std::string> further{"--resume", "--set", "train.steps=6"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), further.begin(), further.end());
    return more;
  };
  refused(with({"--set", "data.train=longer.txt"}), {"other data than data.train=longer.txt", "tokens, now"});
  write("text.txt", changed);
  refused(further, {"other data than data.train=text.txt", "train.init_from"});
  write("text.txt", content);
  refused(with({"--set", "data.validation_fraction=0.2"}), {"held out"});
  refused(with({"--set", "data.validation=elsewhere.txt"}), {"held out"});
  refused(with({"--set", "data.shuffle=false"}), {"data.shuffle", "order of the data"});
  refused(with({"--set", "data.shift=false"}), {"data.shift true", "order of the data"});
  expect_parts(trains(with({"--set", "data.train=elsewhere.txt"})),
               {"data.train: \"text.txt\", now \"elsewhere.txt\"", "same tokens"});
}

// Epochs of about 8 steps: a run of 30 cuts four epochs, and stops in the middle of one.
TEST_F(Resume, ShiftedWindowsContinueInAnyEpoch) {
  write("text.txt", text().substr(0, 600));
  const auto with = [&](std::vector<std::string> more) {
    for (const char* key : {"train.steps=30", "evaluation.every=10"}) more.insert(more.end(), {"--set", key});
    return more;
  };
  trains(with({"--set", "train.folder=whole"}));
  trains(with({"--set", "train.folder=plain", "--set", "data.shift=false"}));
  const auto at_step = [&](const char* run, int64_t step) {
    const std::string prefix = std::to_string(step) + " ";
    std::vector<std::string> found = losses(run);
    std::erase_if(found, [&](const std::string& line) { return !line.starts_with(prefix); });
    return found;
  };
  for (const int64_t step : {1, 8}) EXPECT_EQ(at_step("whole", step), at_step("plain", step)) << step;
  EXPECT_NE(at_step("whole", 10), at_step("plain", 10));

  // Stopped in epoch 1, and resumed; the checkpoint tells whether it shifts
  trains(with({}));
  for (int64_t step = 14; step <= 30; step += 2)
    fs::remove_all(folder / fmt::format("out/checkpoints/step_{:08}", step));
  trains(with({"--resume"}));
  EXPECT_EQ(losses("out"), losses("whole"));

  // An earlier version shifted nothing and said nothing about it.
  const fs::path old = folder / "plain/checkpoints/step_00000012";
  for (int64_t step = 14; step <= 30; step += 2)
    fs::remove_all(folder / fmt::format("plain/checkpoints/step_{:08}", step));
  const std::vector<std::string> unshifted = losses("plain");
  auto state = nlohmann::json::parse(read_file(old / "state.json"));
  EXPECT_EQ(state["shift"], false);
  state.erase("shift");
  write("plain/checkpoints/step_00000012/state.json", state.dump());
  std::string config = read_file(old / "config.yaml");
  const size_t key = config.find("  shift: false\n");
  ASSERT_NE(key, std::string::npos);
  write("plain/checkpoints/step_00000012/config.yaml", config.erase(key, 15));
  fs::remove(old / "checksums.json");
  state["format"] = "tessera checkpoint 1";
  write("plain/checkpoints/step_00000012/state.json", state.dump());
  const auto resumed = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--resume", "--set", "train.folder=plain"});
    return with(more);
  };
  refused(resumed({"--set", "data.shift=true"}), {"data.shift false", "has true"});
  expect_parts(trains(resumed({})), {"in every epoch", "data.shift is false"});
  EXPECT_EQ(losses("plain"), unshifted);
}

TEST_F(Resume, TellsWhatChangedAndWhatItMeans) {
  trains({});
  const std::string out = trains({"--resume", "--set", "train.steps=40", "--set",
                                  "optimizer.weight_decay=0.3", "--set", "train.log_every=100"});
  expect_parts(out, {"train.steps: 4, now 40", "optimizer.weight_decay: 0.1, now 0.3",
                     "train.log_every: ", "step 5 is 0.00986", "0.001 at step 4", "train.steps"});
  EXPECT_EQ(trains({"--resume", "--set", "train.steps=41", "--set", "optimizer.schedule=constant"})
                    .find("weight_decay: 0.3, now 0.1") == std::string::npos,
            false);
}

TEST_F(Resume, AutoStartsWhereThereIsNoCheckpoint) {
  EXPECT_EQ(trains({"--resume", "auto", "--set", "train.steps=2"}).find("resumed"), std::string::npos);
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"--resume", "auto"}, {"--resume=auto"}}) {
    fs::remove_all(folder / "out/checkpoints/step_00000004");
    expect_parts(trains(words), {"resumed from out/checkpoints/step_00000002"});
  }
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"--resume=always"}, {"--resume", "always"}})
    EXPECT_NE(train(words).status, 0) << words.back();
  // A run that was killed before its first checkpoint
  fs::remove_all(folder / "out/checkpoints");
  const std::string metrics = read_file(folder / "out/metrics.jsonl");
  refused({}, {"out holds metrics.jsonl", "--overwrite", "--resume auto"});
  refused({"--resume"}, {"nothing to resume", "--resume auto"});
  EXPECT_EQ(read_file(folder / "out/metrics.jsonl"), metrics);
  expect_parts(trains({"--resume", "auto"}), {"metrics-1.jsonl"});
  EXPECT_EQ(read_file(folder / "out/metrics-1.jsonl"), metrics);
  trains({"--overwrite"});
}

TEST_F(Resume, DamageIsFoundAndVerifyNamesIt) {
  trains({});
  const ProcessResult whole = run_process(TRAIN_BINARY, {"--verify", "out"}, {.folder = folder});
  EXPECT_EQ(whole.status, 0) << whole.error;
  expect_parts(whole.out, {"whole    out/checkpoints/step_00000004/model.safetensors", "0 damaged"});
  const fs::path file = folder / "out/checkpoints/step_00000004/optimizer.safetensors";
  std::string bytes = read_file(file);
  bytes[bytes.size() - 100] ^= 4;
  std::ofstream(file, std::ios::binary) << bytes;
  const ProcessResult found = run_process(TRAIN_BINARY, {"--verify", "out"}, {.folder = folder});
  EXPECT_EQ(found.status, 1);
  expect_parts(found.out,
               {"damaged  out/checkpoints/step_00000004/optimizer.safetensors: its checksum", "1 damaged"});
  const std::vector<std::string> further{"--resume", "--set", "train.steps=6"};
  refused(further, {"optimizer.safetensors is damaged", "step_00000002 is whole", "mv "});
  write("out/checkpoints/step_00000004/state.json", "{");
  refused(further, {"state.json", "step_00000002"});
  fs::rename(folder / "out/checkpoints/step_00000004", folder / "out/checkpoints/step_00000004.damaged");
  expect_parts(trains(further), {"resumed from out/checkpoints/step_00000002"});
  EXPECT_EQ(run_process(TRAIN_BINARY, {"--verify", "none"}, {.folder = folder}).status, 1);
}

TEST_F(Resume, OnlyOneRunWritesToAFolder) {
  Process first(TRAIN_BINARY, {"--config", "small.yaml", "--set", "train.steps=1000000"}, {.folder = folder});
  ASSERT_TRUE(wait_until([&] { return losses("out").size() >= 5; }));
  const std::string pid = "process " + std::to_string(first.pid());
  for (const char* how : {"--overwrite", "--resume"})
    refused({how}, {"another run", "writing to out", pid.c_str(), "on the host", "started 20"});
  first.signal(SIGKILL);
  first.finish();
  trains({"--overwrite"});  // the lock ended with the process
}

TEST_F(Resume, OverwriteRemovesOnlyWhatARunWrote) {
  trains({});
  const fs::path made = folder / "out/checkpoints";
  fs::copy(made / "step_00000002", made / "step_best");
  write("out/notes.txt", "mine");
  refused({"--overwrite", "--set", "train.init_from=out/checkpoints/step_00000004"},
          {"train.init_from", "--overwrite would remove", "train.folder"});
  trains({"--overwrite", "--set", "train.init_from=text.txt/../out/checkpoints/../../kept", "--set",
          "train.steps=2", "--set", "train.init_from=\"\""});
  EXPECT_EQ(checkpoints(), (std::set<std::string>{"step_00000002", "step_best"}));
  EXPECT_EQ(read_file(folder / "out/notes.txt"), "mine");
}

TEST_F(Resume, TheBestAndMilestonesAreKeptThroughKillsAndResumes) {
  const std::vector<std::string> keys{
      "--set", "checkpoint.keep=1",         "--set", "checkpoint.keep_every=4",
      "--set", "checkpoint.keep_best=true", "--set", "train.log_every=1"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), keys.begin(), keys.end());
    return more;
  };
  trains(with({"--set", "train.steps=6"}));
  EXPECT_EQ(checkpoints(), (std::set<std::string>{"step_00000004", "step_00000006"}));
  // From here on it gets worse: step 6 stays the best.
  const std::string out =
      trains(with({"--resume", "--set", "train.steps=10", "--set", "optimizer.learning_rate=1", "--set",
                   "optimizer.min_learning_rate=1"}));
  expect_parts(out, {"lowest validation loss", "after step 6"});
  EXPECT_EQ(checkpoints(),
            (std::set<std::string>{"step_00000004", "step_00000006", "step_00000008", "step_00000010"}));
  refused({"--set", "checkpoint.keep_every=3"},
          {"checkpoint.keep_every 3", "not a multiple of", "checkpoint.every 2"});
  refused({"--set", "checkpoint.keep_best=true", "--set", "evaluation.every=0"}, {"checkpoint.keep_best"});
}

TEST_F(Resume, WeightsThatAreNotFiniteAreNotSavedAndTheLastCheckpointStays) {
  trains({"--set", "checkpoint.keep=1"});
  const ProcessResult result =
      train({"--resume", "--set", "train.steps=6", "--set", "checkpoint.every=1", "--set",
             "checkpoint.keep=1", "--set", "optimizer.learning_rate=1e300", "--set",
             "optimizer.min_learning_rate=1e300", "--set", "evaluation.every=0"});
  EXPECT_EQ(result.status, 1) << result.out;
  expect_parts(result.error, {"step 5 was not written", "is not finite", "optimizer.learning_rate"});
  EXPECT_EQ(checkpoints(), std::set<std::string>{"step_00000004"});
  EXPECT_EQ(run_process(TRAIN_BINARY, {"--verify", "out"}, {.folder = folder}).status, 0);
}

}  // namespace
}  // namespace tessera::testing
