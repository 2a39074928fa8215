// A fixture that runs the train program as several ranks on the CPU, with a model that takes milliseconds a
// step.
#pragma once

#include <algorithm>

#include "tests/train_program.h"
#include "train/parallel/make_communicator.h"

namespace tessera::testing {

using Words = std::vector<std::string>;

class TrainRanks : public TrainProgram {
 protected:
  TrainRanks()
      : TrainProgram(
            "device: cpu\n"
            "model:\n  vocab_size: 257\n  context: 32\n  layers: 2\n  heads: 2\n  channels: 32\n"
            "data:\n  train: text.txt\n"
            "train:\n  folder: out\n  steps: 50\n  tokens_per_step: 768\n  time_limit: 3\n"
            "optimizer:\n  learning_rate: 5e-3\n  min_learning_rate: 5e-4\n  warmup_steps: 2\n"
            "evaluation:\n  every: 10\n  sequences: 13\n"
            "sampling:\n  every: 25\n  tokens: 8\n"
            "checkpoint:\n  every: 25\n  keep: 0\n") {}

  void SetUp() override {
    std::string why_not;
    if (!can_communicate(Device::kCpu, why_not)) GTEST_SKIP() << why_not;
  }

  static Words with(Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  static Words sets(const Words& settings) {
    Words words;
    for (const std::string& setting : settings) words.insert(words.end(), {"--set", setting});
    return words;
  }
  // The switches of a run in `run_folder` by so many ranks.
  static Words by(int ranks, const std::string& run_folder, const Words& settings = {}) {
    return with({"--ranks", std::to_string(ranks), "--set", "train.folder=" + run_folder}, sets(settings));
  }

  void prepare_lines(const std::string& lines, const std::string& to) const {
    const ProcessResult result = run_process(
        PREPARE_BINARY, {lines, "--tokenizer", "bytes", "--output", to, "--force"}, {.folder = folder});
    ASSERT_EQ(result.status, 0) << result.error;
  }
  // The folder `name`, with the weights of a run of two steps
  void make_model(const std::string& name, int seed) const {
    const ProcessResult result =
        train(sets({"train.folder=" + name + "_run", fmt::format("train.seed={}", seed), "train.steps=2",
                    "evaluation.every=0", "sampling.every=0", "checkpoint.every=0"}));
    ASSERT_EQ(result.status, 0) << result.error;
    std::filesystem::create_directory(folder / name);
    for (const char* file : {"model.safetensors", "config.json"})
      std::filesystem::copy_file(folder / (name + "_run") / "checkpoints/step_00000002" / file,
                                 folder / name / file);
  }

  ProcessResult trains(const Words& words) const {
    ProcessResult result = train(words);
    EXPECT_EQ(result.status, 0) << result.error;
    EXPECT_EQ(result.error, "");
    return result;
  }

  // The values of one key in a run's metrics, in order.
  std::vector<double> values(const std::string& run, const std::string& key) const {
    std::vector<double> found;
    for (const std::string& line : losses(run))
      if (line.find(" " + key + " ") != std::string::npos)
        found.push_back(std::stod(line.substr(line.rfind(' '))));
    return found;
  }

  // The number of steps in the metrics, waiting until there are so many.
  void wait_for_steps(const std::string& run, size_t steps) const {
    const std::filesystem::path metrics = folder / run / "metrics.jsonl";
    ASSERT_TRUE(wait_until([&] {
      const std::string text = read_file(metrics);
      size_t found = 0;
      for (size_t at = 0; (at = text.find("\"type\":\"step\"", at)) != std::string::npos; ++at) ++found;
      return found >= steps;
    })) << "no "
        << steps << " steps";
  }

  std::vector<int> checkpoints(const std::string& run) const {  // by step
    std::vector<int> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder / run / "checkpoints")) {
      const std::string name = entry.path().filename();
      if (!name.ends_with(".unfinished")) found.push_back(std::stoi(name.substr(5)));
    }
    std::sort(found.begin(), found.end());
    return found;
  }

  // One line in all, of these parts.
  static void expect_one_message(const std::string& error, const Words& parts) {
    EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 1) << error;
    for (const std::string& part : parts)
      EXPECT_NE(error.find(part), std::string::npos) << "wanted: " << part << "\nfound:  " << error;
  }
};

}  // namespace tessera::testing
