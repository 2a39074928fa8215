// Runs in which several ranks share each sequence: losses, evaluations by position, tasks and samples are
// those of one rank; a run that was killed goes on, with the same ranks to the same bits, or with others.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/tolerances.h"
#include "tests/train_program.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

struct ContextRun : TrainProgram {
  ContextRun()
      : TrainProgram(
            "device: cpu\n"
            "model:\n  vocab_size: 257\n  context: 32\n  layers: 2\n  heads: 2\n  channels: 16\n"
            "data:\n  train: poems\n  documents: mask\n"
            "train:\n  folder: out\n  steps: 8\n  tokens_per_step: 128\n  micro_batch: 2\n"
            "optimizer:\n  learning_rate: 1e-3\n  min_learning_rate: 1e-3\n  warmup_steps: 2\n"
            "evaluation:\n  every: 4\n  sequences: 6\n  by_position: true\n  tasks: [task.jsonl]\n"
            "sampling:\n  every: 4\n  tokens: 8\n"
            "checkpoint:\n  every: 4\n  keep: 0\n") {
    std::string lines, items;
    for (int i = 0; i < 60; ++i) {
      std::string text = fmt::format("poem {} ", i);
      while (static_cast<int>(text.size()) < 4 + 3 * i * 7 % 64) text += static_cast<char>('a' + i % 26);
      lines += fmt::format("{{\"text\": \"{}\"}}\n", text);
    }
    for (int i = 0; i < 5; ++i)
      items +=
          fmt::format(R"({{"context": "poem {}", "choices": [" aaa", " bbb"], "label": {}}})", i, i % 2) +
          "\n";
    write("poems.jsonl", lines);
    write("task.jsonl", items);
    const auto result = run_process(PREPARE_BINARY, {"poems.jsonl", "--output", "poems"}, {.folder = folder});
    EXPECT_EQ(result.status, 0) << result.error;
  }

  std::string trains(const std::vector<std::string>& switches) const {
    const ProcessResult result = train(switches);
    EXPECT_EQ(result.status, 0) << result.out << result.error;
    return result.out;
  }

  // All numbers of the metrics file, by step and key
  std::map<std::string, double> numbers(const std::string& run) const {
    std::ifstream file(folder / run / "metrics.jsonl");
    std::map<std::string, double> found;
    for (std::string line; std::getline(file, line);) {
      const auto json = nlohmann::json::parse(line);
      if (!json.contains("step")) continue;
      for (const char* key : {"loss", "grad_norm", "validation_loss"})
        if (json.contains(key)) found[json["step"].dump() + " " + key] = json[key].get<double>();
      if (!json.contains("position_losses")) continue;
      const std::vector<double> by_position = json["position_losses"];
      for (size_t i = 0; i < by_position.size(); ++i)
        found[fmt::format("{} position {}", json["step"].dump(), i)] = by_position[i];
    }
    return found;
  }
  // What memory held at its peak, by tag: of each start of a run
  std::vector<std::string> peaks(const std::string& run) const {
    std::ifstream file(folder / run / "metrics.jsonl");
    std::vector<std::string> found;
    for (std::string line; std::getline(file, line);)
      if (const auto json = nlohmann::json::parse(line); json.contains("bytes_by_tag"))
        found.push_back(json["bytes_by_tag"].dump());
    return found;
  }
  void expect_near(const std::string& run, const std::string& of_one) const {
    const auto ours = numbers(run), one = numbers(of_one);
    ASSERT_GT(one.size(), 20u);
    ASSERT_EQ(ours.size(), one.size());
    for (const auto& [name, value] : one)
      EXPECT_NEAR(ours.at(name), value, tolerance::kLossesOfRanks * std::abs(value)) << name;
  }
};

TEST_F(ContextRun, IsTheRunOfOneRank) {
  trains({"--set", "train.folder=one"});
  const std::string out =
      trains({"--ranks", "2", "--set", "parallel.context=2", "--set", "train.folder=two"});
  EXPECT_NE(out.find("2 ranks for each sequence"), std::string::npos) << out;
  trains({"--ranks", "4", "--set", "parallel.context=2", "--set", "parallel.shard=weights", "--set",
          "train.folder=four", "--set", "train.micro_batch=1"});
  trains({"--ranks", "3", "--set", "parallel.context=3", "--set", "train.folder=three"});
  for (const char* run : {"two", "three", "four"}) {
    SCOPED_TRACE(run);
    expect_near(run, "one");
  }
}

TEST_F(ContextRun, ResumesWithTheSameRanksOrOthers) {
  const std::vector<std::string> two{"--ranks", "2", "--set", "parallel.context=2"};
  trains({"--ranks", "2", "--set", "parallel.context=2", "--set", "train.folder=whole"});
  const auto killed_at_4 = [&] {
    fs::remove_all(folder / "out");
    trains(two);
    fs::remove_all(folder / "out/checkpoints/step_00000008");
  };
  killed_at_4();
  trains({"--resume", "--ranks", "2", "--set", "parallel.context=2"});
  EXPECT_EQ(losses("out"), losses("whole"));
  // A run that goes on needs as much memory as one that begins.
  ASSERT_EQ(peaks("whole").size(), 1u);
  EXPECT_EQ(peaks("out"), std::vector<std::string>(2, peaks("whole")[0]));
  killed_at_4();
  trains({"--resume", "--ranks", "4", "--set", "parallel.context=4"});
  expect_near("out", "whole");
  killed_at_4();
  trains({"--resume", "--ranks", "2", "--set", "parallel.context=1", "--set", "train.micro_batch=1"});
  expect_near("out", "whole");
  killed_at_4();
  trains({"--resume", "--ranks", "1", "--set", "parallel.context=1"});
  expect_near("out", "whole");
}

TEST_F(ContextRun, RefusesWhatCannotBe) {
  const auto refuses = [&](std::vector<std::string> switches, std::initializer_list<const char*> parts) {
    switches.insert(switches.end(), {"--set", "parallel.context=2"});
    const ProcessResult result = train(switches);
    EXPECT_EQ(result.status, 1) << result.out << result.error;
    for (const char* part : parts)
      EXPECT_NE((result.out + result.error).find(part), std::string::npos) << result.error;
  };
  refuses({"--ranks", "3"}, {"parallel.context=2", "the run has 3", "multiple of 2"});
  refuses({"--ranks", "1"}, {"parallel.context=2", "the run has 1"});
  refuses({"--ranks", "2", "--set", "parallel.context_heads=3"}, {"divides the 2 heads", "found 3"});
  refuses({"--ranks", "6", "--set", "train.tokens_per_step=64"}, {"6 ranks (2 for each sequence)", "64"});
}

}  // namespace
}  // namespace tessera::testing
