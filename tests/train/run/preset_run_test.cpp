// The train program with a preset made small, on shards of 32-bit tokens.
#include "tests/train_program.h"

namespace tessera::testing {
namespace {

struct PresetRun : TrainProgram {
  PresetRun()
      : TrainProgram(
            "device: cpu\n"
            "model:\n  preset: llama3.2_1b\n  vocab_size: 70000\n  context: 32\n  layers: 2\n  heads: 4\n"
            "  kv_heads: 2\n  channels: 32\n  mlp_width: 96\n  rope: {original_context: 16}\n"
            "data:\n  train: shards\n"
            "train:\n  folder: out\n  steps: 6\n  tokens_per_step: 128\n  micro_batch: 2\n"
            "optimizer:\n  learning_rate: 1e-2\n  min_learning_rate: 1e-3\n  warmup_steps: 2\n"
            "evaluation:\n  every: 3\n  sequences: 2\n"
            "sampling:\n  every: 0\n") {
    std::filesystem::create_directories(folder / "shards");
    std::vector<uint32_t> tokens(3000);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint32_t>(69999 - 1000 * (i % 7));
    write("shards/a.bin", wide_shard_bytes(tokens));
  }
};

TEST_F(PresetRun, LearnsFromWideTokensWithTheSameBitsHoweverItRecomputes) {
  const ProcessResult run = train({});
  ASSERT_EQ(run.status, 0) << run.error;
  const auto value = [](const std::string& line) { return std::stod(line.substr(line.rfind(' '))); };
  const std::vector<std::string> kept = losses("out");
  EXPECT_LT(value(kept.back()), 10.5);  // random weights: ln 70000 = 11.2
  EXPECT_NE(read_file(folder / "out/config.yaml").find("\n  preset: llama3.2_1b\n"), std::string::npos);
  for (const char* words : {"norms+activation", "attention+mlp"}) {
    const ProcessResult again = train(
        {"--set", std::string("train.recompute=") + words, "--set", std::string("train.folder=") + words});
    ASSERT_EQ(again.status, 0) << again.error;
    EXPECT_EQ(losses(words), kept) << words;
  }
}

TEST_F(PresetRun, StartsAnotherWithALongerContext) {
  const ProcessResult run = train({});
  ASSERT_EQ(run.status, 0) << run.error;
  write("small.yaml",
        "device: cpu\ndata:\n  train: shards\n"
        "train:\n  folder: long\n  init_from: out/checkpoints/step_00000006\n  steps: 1\n"
        "  tokens_per_step: 128\nsampling:\n  every: 0\n");
  const ProcessResult longer = train({"--set", "model.context=64"});
  ASSERT_EQ(longer.status, 0) << longer.error;
  EXPECT_NE(read_file(folder / "long/config.yaml").find("\n    original_context: 16\n"), std::string::npos);
  refused({"--set", "model.preset=qwen3_0.6b"},
          {"preset qwen3_0.6b: model.vocab_size is 151936", "vocab_size is 70000", "remove model.preset"});
}

TEST_F(PresetRun, TokensBeyondTheVocabularyAreRefused) {
  refused({"--set", "model.vocab_size=69999"},
          {"shards/a.bin: token", "is 69999", "vocabulary", "69999 tokens", "model.vocab_size"});
  write("shards/b.bin", shard_bytes({1, 2, 3}));
  refused({}, {"a.bin", "b.bin", "32 and of 16 bits"});
}

}  // namespace
}  // namespace tessera::testing
