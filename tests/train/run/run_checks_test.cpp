// Data, vocabulary and prompt are held against each other before a run starts.
#include "train/run/run_checks.h"

#include <gtest/gtest.h>

#include "tests/train_program.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

struct RunChecks : TrainProgram {
  RunChecks()
      : TrainProgram(
            "device: cpu\n"
            "model:\n  vocab_size: 257\n  context: 32\n  layers: 1\n  heads: 2\n  channels: 16\n"
            "data:\n  train: text.txt\n"
            "train:\n  folder: out\n  steps: 1\n  tokens_per_step: 64\n"
            "optimizer:\n  warmup: 0\n"
            "evaluation:\n  sequences: 2\nsampling:\n  tokens: 2\n") {}

  std::string notices(std::vector<std::string> arguments) const {
    const ProcessResult result = train(arguments);
    EXPECT_EQ(result.status, 0) << result.error;
    std::string found;
    std::istringstream lines(result.out);
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with("notice   ")) found += line + "\n";
    return found;
  }
  static void expect_in(const std::string& text, std::initializer_list<const char*> parts) {
    for (const char* part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
};

TEST_F(RunChecks, AVocabularyThatIsNotTheTokenizersIsNoticed) {
  EXPECT_EQ(notices({}), "");
  expect_in(notices({"--overwrite", "--set", "model.vocab_size=50257"}),
            {"text.txt", "`bytes` (257 ids)", "model.vocab_size is 50257", "--set model.vocab_size=257"});
  expect_in(notices({"--overwrite", "--set", "model.vocab_size=384"}), {"from 257", "padding"});
  expect_in(notices({"--overwrite", "--set", "model.vocab_size=200"}),
            {"above 199", "--set model.vocab_size=257"});
}

TEST_F(RunChecks, AWarmUpAsLongAsTheRunIsNoticed) {
  const std::vector<std::string> longer{"--set", "optimizer.warmup=50", "--set", "train.steps=2"};
  expect_in(notices(longer), {"optimizer.warmup is 50 steps", "has 2", "is 2.4e-05", "0.0006"});
  std::vector<std::string> planned = longer;
  planned.push_back("--plan");
  expect_in(notices(planned), {"optimizer.warmup is 50 steps", "has 2"});
  planned[1] = "optimizer.warmup=3%";
  EXPECT_EQ(notices(planned), "");
}

// The only step of a run without warm-up has the full rate.
TEST_F(RunChecks, WithoutAWarmUpTheFirstStepHasTheFullRate) {
  const ProcessResult result = train({});
  EXPECT_NE(result.out.find("| lr 6.00e-04 |"), std::string::npos) << result.out;
}

TEST_F(RunChecks, AConfigurationThatFinetunesNeedsWeights) {
  for (const char* shipped : {"finetune", "finetune_long", "finetune_quickstart", "lora_finetune"})
    for (const char* plan : {"", "--plan"}) {
      std::vector<std::string> words{shipped, "--set", "train.folder=out"};
      if (*plan) words.push_back(plan);
      const ProcessResult result = run_process(TRAIN_BINARY, words, {.folder = folder});
      EXPECT_EQ(result.status, 1) << shipped << plan;
      expect_in(result.error, {"train.init_from is \"required\"", "--set train.init_from=FOLDER"});
    }
  EXPECT_FALSE(fs::exists(folder / "out"));
  const std::vector<std::string> required{"--set", "train.init_from=required"};
  refused(required, {"train.init_from is \"required\""});
  // A run that resumes has its weights.
  ASSERT_EQ(train({}).status, 0);
  std::vector<std::string> resumed = required;
  resumed.insert(resumed.end(), {"--resume", "--set", "train.steps=2"});
  EXPECT_EQ(train(resumed).status, 0);
}

TEST_F(RunChecks, WeightsOfAnotherTokenizerAreRefused) {
  ASSERT_EQ(train({"--set", "model.vocab_size=512", "--set", "train.folder=wide"}).status, 0);
  const std::vector<std::string> from_wide{"--set", "model.vocab_size=512", "--set",
                                           "train.init_from=wide/checkpoints/step_00000001"};
  refused(from_wide, {"text.txt", "`bytes` (257 ids)", "train.init_from", "has a vocabulary of 512",
                      "_train_*.bin", "--set model.vocab_size=257"});
  EXPECT_FALSE(fs::exists(folder / "out")) << "a refused run left something behind";
  std::vector<std::string> planned = from_wide;
  planned.push_back("--plan");
  refused(planned, {"text.txt", "`bytes` (257 ids)", "has a vocabulary of 512"});
  // A checkpoint of a run that did so before goes on.
  std::vector<std::string> resumed = from_wide;
  resumed.insert(resumed.end(), {"--resume", "--set", "train.folder=wide", "--set", "train.steps=2"});
  expect_in(notices(resumed), {"--set model.vocab_size=257"});
  // A vocabulary that is only padded is the tokenizer's.
  ASSERT_EQ(train({"--set", "model.vocab_size=320", "--set", "train.folder=padded"}).status, 0);
  expect_in(
      notices({"--set", "model.vocab_size=320", "--set", "train.init_from=padded/checkpoints/step_00000001"}),
      {"padding"});
}

TEST_F(RunChecks, APromptOutsideTheVocabularyIsRefusedBeforeTheRun) {
  const std::vector<std::string> prompt{"--set", "model.vocab_size=150", "--set",
                                        "sampling.prompt=caf\u00e9"};
  refused(prompt, {"sampling.prompt \"caf\u00e9\"", "token 195 at position 3", "150 tokens (0 to 149)",
                   "model.vocab_size=257", "sampling.every=0"});
  EXPECT_FALSE(fs::exists(folder / "out"));
  std::vector<std::string> never = prompt;
  never.insert(never.end(), {"--set", "sampling.every=0"});
  EXPECT_EQ(train(never).status, 0);
  expect_in(notices({"--overwrite", "--set", "sampling.prompt=" + std::string(40, 'a')}),
            {"sampling.prompt has 40 tokens", "32", "model.context"});
}

TEST_F(RunChecks, ValidationIsOfTheSameTokenizer) {
  fs::create_directory(folder / "other");
  write("other/val_000000.bin", shard_bytes(std::vector<uint32_t>(100, 7)));
  write("held.bin", shard_bytes(std::vector<uint32_t>(100, 7)));
  write(
      "other/dataset.json",
      "{\"format\": \"tessera-dataset-1\", \"tokenizer\": \"gpt2\", \"vocab_size\": 50257, \"tokens\": 100, "
      "\"documents\": 1, \"shards\": 1}");
  refused({"--set", "data.validation=other"},
          {"data.validation, other", "`gpt2`", "data.train, text.txt", "`bytes`"});
  expect_in(notices({"--set", "data.validation=held.bin"}), {"held.bin", "not known"});
}

// A small BPE tokenizer: prepared with it, trained, sampled, and started from.
TEST_F(RunChecks, TheTokenizerOfTheDataGoesIntoSamplesAndCheckpoints) {
  const auto prepare = [&](const std::string& kind, const std::string& output) {
    const std::string tokenizer =
        std::string(TESSERA_SOURCE_DIR) + "/tests/fixtures/tokenizers/" + kind + ".json";
    const auto result = run_process(
        PREPARE_BINARY, {"text.txt", "--tokenizer", tokenizer, "--output", output}, {.folder = folder});
    ASSERT_EQ(result.status, 0) << result.error;
  };
  prepare("gpt2", "gpt2");
  prepare("llama3", "llama3");
  const std::vector<std::string> data{"--set", "data.train=gpt2", "--set", "model.vocab_size=704"};
  std::vector<std::string> first = data;
  first.insert(first.end(), {"--set", "sampling.every=1", "--set", "sampling.prompt=a <|im_start|>"});
  const ProcessResult result = train(first);
  ASSERT_EQ(result.status, 0) << result.error;
  EXPECT_NE(result.out.find("tokenizer bpe-"), std::string::npos) << result.out;
  bool has_sample = false;
  for (const std::string& line : losses("out")) has_sample = has_sample || line.find("sample") != line.npos;
  EXPECT_TRUE(has_sample);
  EXPECT_EQ(read_file(folder / "out/checkpoints/step_00000001/tokenizer.json"),
            read_file(folder / "gpt2/tokenizer.json"));

  std::vector<std::string> from = data;
  from.insert(from.end(),
              {"--set", "train.init_from=out/checkpoints/step_00000001", "--set", "train.folder=next"});
  EXPECT_EQ(notices(from), "");
  // Any number of rows beyond the ids of a model's own tokenizer is right.
  std::vector<std::string> padded = data;
  padded[3] = "model.vocab_size=1500";
  padded.insert(padded.end(), {"--set", "train.folder=padded"});
  expect_in(notices(padded), {"from 704", "never used", "--set model.vocab_size=704"});
  std::vector<std::string> from_padded{"--set", "data.train=gpt2",
                                       "--set", "model.vocab_size=1500",
                                       "--set", "train.init_from=padded/checkpoints/step_00000001",
                                       "--set", "train.folder=from_padded"};
  EXPECT_EQ(notices(from_padded), "");
  // Without a tokenizer beside the weights it is a matter of size.
  fs::remove(folder / "padded/checkpoints/step_00000001/tokenizer.json");
  from_padded.back() = "train.folder=refused";
  refused(from_padded, {"(704 ids)", "has a vocabulary of 1500"});

  from[1] = "data.train=llama3";
  from.back() = "train.folder=refused";
  refused(from, {"data.train, llama3", "`bpe-", "train.init_from, out/checkpoints",
                 "./prepare --tokenizer out/checkpoints/step_00000001"});
  refused({"--set", "data.train=gpt2", "--set", "model.vocab_size=704", "--set", "data.validation=llama3",
           "--set", "train.folder=refused"},
          {"data.validation, llama3", "`bpe-"});
}

}  // namespace
}  // namespace tessera::testing
