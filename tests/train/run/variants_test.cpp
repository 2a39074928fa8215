// Runs of every variant of GPT-2 and of every family: checkpoints keep what the model is, and transformers
// computes the same.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "model/formats/family.h"
#include "model/formats/folder.h"
#include "model/formats/safetensors.h"
#include "tests/model_families.h"
#include "tests/model_variants.h"
#include "tests/python.h"
#include "tests/train_program.h"
#include "train/config/load_config.h"
#include "train/session/from_config.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

constexpr ModelConfig kSmallRun{.vocab_size = 257, .context = 32, .layers = 2, .heads = 2, .channels = 32};

struct VariantRun : TrainProgram {
  VariantRun()
      : TrainProgram(
            "device: cpu\n"
            "model:\n  vocab_size: 257\n  context: 32\n  layers: 2\n  heads: 2\n  channels: 32\n"
            "data:\n  train: text.txt\n"
            "train:\n  folder: out\n  steps: 8\n  tokens_per_step: 256\n  micro_batch: 4\n"
            "optimizer:\n  learning_rate: 1e-2\n  min_learning_rate: 1e-3\n  warmup_steps: 2\n"
            "evaluation:\n  every: 4\n  sequences: 4\n"
            "sampling:\n  every: 8\n  tokens: 8\n"
            "checkpoint:\n  every: 4\n  keep: 0\n") {}

  // What a user sets to get the variant.
  static std::vector<std::string> settings(const ModelConfig& model) {
    std::vector<std::string> all;
    const auto set = [&](const std::string& setting) { all.insert(all.end(), {"--set", setting}); };
    for_each_model_key_of(model, kSmallRun, [&](std::string_view key, const auto& wanted, const auto& plain) {
      if (wanted != plain) set(fmt::format("{}={}", key, setting_of(wanted)));
    });
    for_each_dropout_key(model.dropout, [&](const char* key, double probability) {
      if (probability > 0) set(fmt::format("{}={}", key, probability));
    });
    return all;
  }
  static std::vector<Variant> variants_and_families() {
    std::vector<Variant> all = variants_of(kSmallRun), families = families_of(kSmallRun);
    all.insert(all.end(), families.begin(), families.end());
    return all;
  }
  static std::vector<std::string> joined(std::vector<std::string> a, const std::vector<std::string>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }
};

TEST_F(VariantRun, SettingsAreTheModel) {
  for (const Variant& variant : variants_and_families()) {
    std::vector<std::string> overrides;
    for (const std::string& word : settings(variant.model))
      if (word != "--set") overrides.push_back(word);
    EXPECT_EQ(model_config(load_config(folder / "small.yaml", overrides)), variant.model) << variant.name;
  }
  const auto refused_by = [&](const std::string& setting) -> std::string {
    try {
      load_config(folder / "small.yaml", {{setting}});
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing";
  };
  EXPECT_NE(
      refused_by("model.mlp=swish").find("gelu, gelu_exact, relu, relu2, swiglu, geglu or clamped_swiglu"),
      std::string::npos);
  EXPECT_NE(refused_by("model.mlp_width=12").find("multiple of 8"), std::string::npos);
  EXPECT_NE(refused_by("model.norm_epsilon=0").find("at least 1e-12"), std::string::npos);
}

// With its weights, moments and config.json; from the middle to the end by the same bits, and as init_from.
TEST_F(VariantRun, ACheckpointResumesBitForBit) {
  const Variant variant = variants_of(kSmallRun).back();  // all at once
  const ProcessResult run = train(settings(variant.model));
  ASSERT_EQ(run.status, 0) << run.error;
  const fs::path last = folder / "out/checkpoints/step_00000008";
  EXPECT_EQ(read_model_config(last).model, variant.model);
  const SafetensorsReader weights(last / "model.safetensors"), moments(last / "optimizer.safetensors");
  std::vector<float> head(static_cast<size_t>(kSmallRun.vocab_size * kSmallRun.channels)), table = head;
  weights.read("lm_head.weight", {kSmallRun.vocab_size, kSmallRun.channels}, head);
  weights.read("transformer.wte.weight", {kSmallRun.vocab_size, kSmallRun.channels}, table);
  EXPECT_NE(head, table);
  EXPECT_TRUE(moments.contains("first_moment.lm_head.weight"));

  fs::copy(folder / "out", folder / "cut", fs::copy_options::recursive);
  fs::remove_all(folder / "cut/checkpoints/step_00000008");
  const ProcessResult resumed =
      train(joined(settings(variant.model), {"--resume", "--set", "train.folder=cut"}));
  ASSERT_EQ(resumed.status, 0) << resumed.error;
  EXPECT_EQ(losses("out"), losses("cut"));

  // The folder says what the model is: the file's own sizes serve, and no setting is needed.
  write("from.yaml",
        "device: cpu\ndata:\n  train: text.txt\n"
        "train:\n  init_from: out/checkpoints/step_00000008\n  folder: again\n  steps: 1\n"
        "  tokens_per_step: 256\n  micro_batch: 4\n"
        "optimizer:\n  learning_rate: 1e-9\n  min_learning_rate: 1e-9\n  warmup_steps: 0\n"
        "evaluation:\n  every: 1\n  sequences: 4\nsampling:\n  every: 0\n");
  const ProcessResult again = run_process(TRAIN_BINARY, {"--config", "from.yaml"}, {.folder = folder});
  ASSERT_EQ(again.status, 0) << again.error;
  const auto validation = [&](const std::string& name) {
    double loss = 0;
    for (const std::string& line : losses(name))
      if (line.find("validation_loss") != std::string::npos) loss = std::stod(line.substr(line.rfind(' ')));
    return loss;
  };
  EXPECT_NEAR(validation("again") / validation("out"), 1, 1e-5);
}

std::vector<FamilyModel> families_of_bytes() {
  std::vector<FamilyModel> all = family_models();
  for (FamilyModel& one : all) one.model.vocab_size = kSmallRun.vocab_size;
  return all;
}

// The same losses after a stop in the middle, with weights in fp32 or in bf16.
TEST_F(VariantRun, EveryFamilyResumesBitForBit) {
  const std::map<std::string, const char*> dtypes{
      {"gpt2", "bf16"},  {"llama", "fp32"}, {"llama_yarn", "bf16"}, {"qwen2", "fp32"},
      {"qwen3", "bf16"}, {"phi3", "bf16"},  {"tessera", "bf16"},    {"tessera_gated", "fp32"}};
  for (const FamilyModel& one : families_of_bytes())
    if (dtypes.contains(one.name)) {
      const char* dtype = dtypes.at(one.name);
      const std::string name = one.name + "_" + dtype, cut = name + "_cut";
      SCOPED_TRACE(name);
      const std::vector<std::string> asked =
          joined(settings(one.model), {"--set", std::string("checkpoint.dtype=") + dtype});
      const ProcessResult run = train(joined(asked, {"--set", "train.folder=" + name}));
      ASSERT_EQ(run.status, 0) << run.error;
      EXPECT_EQ(read_model_config(folder / name / "checkpoints/step_00000008").family, one.family);
      fs::copy(folder / name, folder / cut, fs::copy_options::recursive);
      fs::remove_all(folder / cut / "checkpoints/step_00000008");
      const ProcessResult resumed = train(joined(asked, {"--resume", "--set", "train.folder=" + cut}));
      ASSERT_EQ(resumed.status, 0) << resumed.error;
      EXPECT_EQ(losses(name), losses(cut));
      for (const char* file : {"model.safetensors", "optimizer.safetensors", "config.json"})
        EXPECT_EQ(read_file(folder / name / "checkpoints/step_00000008" / file),
                  read_file(folder / cut / "checkpoints/step_00000008" / file))
            << file;
    }
}

// From a folder with a tokenizer, through a checkpoint that is resumed from, to the last one.
TEST_F(VariantRun, TheFilesOfTheFolderFollowTheWeights) {
  const std::vector<std::string> llama = settings(families_of_bytes()[1].model);
  ASSERT_EQ(train(joined(llama, {"--set", "train.steps=1"})).status, 0);
  const fs::path source = folder / "out/checkpoints/step_00000001";
  write("out/checkpoints/step_00000001/tokenizer.json", "{\"kept\": true}");
  nlohmann::json fields = nlohmann::json::parse(read_file(source / "config.json"));
  fields.update({{"eos_token_id", {5, 7}}, {"bos_token_id", 3}, {"pad_token_id", nullptr}});
  write("out/checkpoints/step_00000001/config.json", fields.dump());
  const std::vector<std::string> from{"--set", "train.init_from=" + source.string(), "--set",
                                      "train.folder=tuned"};
  write("small.yaml",
        "device: cpu\ndata:\n  train: text.txt\ntrain:\n  steps: 2\n  tokens_per_step: 256\n"
        "  micro_batch: 4\nevaluation:\n  every: 0\nsampling:\n  every: 0\n"
        "checkpoint:\n  every: 1\n  keep: 1\n");
  const ProcessResult tuned = train(from);
  ASSERT_EQ(tuned.status, 0) << tuned.error;
  fs::remove_all(folder / "out");
  const ProcessResult resumed =
      run_process(TRAIN_BINARY, {"--config", "tuned/config.yaml", "--resume", "--set", "train.steps=4"},
                  {.folder = folder});
  ASSERT_EQ(resumed.status, 0) << resumed.error;
  const fs::path last = folder / "tuned/checkpoints/step_00000004";
  EXPECT_EQ(read_file(last / "tokenizer.json"), "{\"kept\": true}");
  const nlohmann::json kept = nlohmann::json::parse(read_file(last / "config.json"));
  EXPECT_EQ(kept["eos_token_id"], (nlohmann::json{5, 7}));
  EXPECT_EQ(kept["bos_token_id"], 3);
  EXPECT_FALSE(kept.contains("pad_token_id"));
  EXPECT_EQ(std::distance(fs::directory_iterator(last.parent_path()), fs::directory_iterator{}), 1)
      << "earlier checkpoints are removed with the copied files";
}

TEST_F(VariantRun, ACheckpointOfAnotherVariantIsRefused) {
  ASSERT_EQ(train({"--set", "train.steps=1"}).status, 0);
  for (const Variant& variant : variants_and_families()) {
    SCOPED_TRACE(variant.name);
    const ProcessResult result = train(joined(settings(variant.model), {"--resume"}));
    EXPECT_NE(result.status, 0);
    EXPECT_NE(result.error.find("another model"), std::string::npos) << result.error;
  }
}

// transformers opens the checkpoint's folder and computes the loss that the run recorded.
TEST_F(VariantRun, TransformersLoadsTheCheckpoint) {
  if (const auto missing = missing_in_python("torch, transformers", folder); !missing.empty())
    GTEST_SKIP() << missing;
  write("held_out.txt", "line 3 of a text that was held out, long enough for two sequences of 32 bytes");
  std::vector<Variant> all = variants_and_families();
  all.insert(all.begin(), {"plain", kSmallRun});
  for (const FamilyModel& one : families_of_bytes())
    if (one.family != "tessera") all.push_back({"bytes_" + one.name, one.model});
  for (const Variant& variant : all) {
    SCOPED_TRACE(variant.name);
    const ProcessResult run = train(joined(
        settings(variant.model), {"--set", "data.validation=held_out.txt", "--set",
                                  "evaluation.sequences=1000", "--set", "train.folder=" + variant.name}));
    ASSERT_EQ(run.status, 0) << run.error;
    std::string loss;
    for (const std::string& line : losses(variant.name))
      if (line.starts_with("8 validation_loss")) loss = line.substr(line.rfind(' ') + 1);
    const ProcessResult result =
        run_process(python_program(),
                    {TESSERA_SOURCE_DIR "/tests/fixtures/check_checkpoint.py",
                     variant.name + "/checkpoints/step_00000008", "held_out.txt", "32", loss},
                    {.folder = folder});
    EXPECT_EQ(result.status, 0) << result.out << result.error;
  }
}

}  // namespace
}  // namespace tessera::testing
