// A model with rotary positions that continues at a longer context than it was trained on: what the program
// says, computes, writes and refuses.
#include <nlohmann/json.hpp>

#include "tests/python.h"
#include "tests/train_program.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

struct LongerContext : TrainProgram {
  LongerContext()
      : TrainProgram(
            "device: cpu\n"
            "data:\n  train: text.txt\n"
            "train:\n  steps: 8\n  tokens_per_step: 256\n"
            "optimizer:\n  learning_rate: 1e-2\n  min_learning_rate: 1e-3\n  warmup_steps: 2\n"
            "evaluation:\n  every: 4\n  sequences: 4\nsampling:\n  every: 0\n"
            "checkpoint:\n  every: 4\n  keep: 0\n") {}

  void SetUp() override {
    runs("short",
         {"model.vocab_size=257", "model.context=32", "model.layers=1", "model.heads=2", "model.channels=32",
          "model.norm=rmsnorm", "model.positions=rope", "model.mlp=swiglu", "model.bias=none"});
  }

  static Words words(const std::string& run, const Words& settings) {
    Words all{"--set", "train.folder=" + run};
    for (const std::string& setting : settings) all.insert(all.end(), {"--set", setting});
    return all;
  }
  std::string runs(const std::string& run, const Words& settings) const {
    const ProcessResult result = train(words(run, settings));
    EXPECT_EQ(result.status, 0) << result.error;
    std::string out = result.out;  // wrapped lines
    for (size_t at; (at = out.find("\n  ")) != out.npos;)
      out.replace(at, out.find_first_not_of(" \n", at) - at, " ");
    return out;
  }
  // On 128 positions, from the model of 32
  static Words longer(Words more) {
    more.insert(more.end(), {"train.init_from=short/checkpoints/step_00000008", "model.context=128"});
    return more;
  }
  nlohmann::json written(const std::string& run) const {
    return nlohmann::json::parse(read_file(folder / run / "checkpoints/step_00000008/config.json"));
  }
};

TEST_F(LongerContext, WithoutAChoiceANoticeNamesThem) {
  const std::string out = runs("plain", longer({}));
  for (const char* part : {"model.context is 128, and the max_position_embeddings of "
                           "short/checkpoints/step_00000008/config.json is 32",
                           "--set model.rope.scaling=yarn --set model.rope.factor=4", "or linear",
                           "model.rope.theta", "leave them to the training"})
    EXPECT_NE(out.find(part), std::string::npos) << part << "\n" << out;
  EXPECT_FALSE(written("plain").contains("rope_scaling"));
}

TEST_F(LongerContext, AScalingIsTakenWrittenAndReadAgain) {
  const std::string out = runs("yarn", longer({"model.rope.scaling=yarn", "model.rope.factor=4"}));
  EXPECT_EQ(out.find("max_position_embeddings"), std::string::npos) << out;
  const nlohmann::json yarn = written("yarn");
  EXPECT_EQ(yarn["max_position_embeddings"], 128);
  EXPECT_EQ(yarn["rope_scaling"]["rope_type"], "yarn");
  EXPECT_EQ(yarn["rope_scaling"]["factor"], 4);
  EXPECT_EQ(yarn["rope_scaling"]["original_max_position_embeddings"], 32);
  // Angles are part of the model: the same weights have another loss with each.
  runs("linear", longer({"model.rope.scaling=linear", "model.rope.factor=4"}));
  runs("theta", longer({"model.rope.theta=160000"}));
  runs("plain", longer({}));
  const std::set<std::string> first{losses("yarn")[0], losses("linear")[0], losses("theta")[0],
                                    losses("plain")[0]};
  EXPECT_EQ(first.size(), 4u);
  EXPECT_EQ(written("linear")["rope_scaling"], (nlohmann::json{{"rope_type", "linear"}, {"factor", 4}}));
  EXPECT_EQ(written("theta")["rope_theta"], 160000);

  // A run from such a checkpoint has its angles, and may have others.
  const std::string again =
      runs("again", {"train.init_from=yarn/checkpoints/step_00000008", "train.steps=4"});
  EXPECT_EQ(again.find("notice   model.context"), std::string::npos) << again;
  const std::string config = read_file(folder / "again/config.yaml");
  EXPECT_NE(config.find("scaling: yarn\n"), std::string::npos);
  EXPECT_NE(config.find("original_context: 32\n"), std::string::npos);
  runs("other", {"train.init_from=yarn/checkpoints/step_00000008", "model.rope.scaling=linear",
                 "model.rope.factor=8", "model.context=256"});
  EXPECT_EQ(written("other")["rope_scaling"], (nlohmann::json{{"rope_type", "linear"}, {"factor", 8}}));
}

TEST_F(LongerContext, AFactorThatIsTooSmallGetsANotice) {
  EXPECT_NE(runs("half", longer({"model.rope.scaling=linear", "model.rope.factor=2"}))
                .find("model.rope.factor=2 is meant for 64"),
            std::string::npos);
  refused(words("none", longer({"model.rope.scaling=yarn"})), {"changes nothing with model.rope.factor 1"});
}

TEST_F(LongerContext, AResumedRunKeepsItsAngles) {
  runs("yarn", longer({"model.rope.scaling=yarn", "model.rope.factor=4"}));
  Words other = words("yarn", longer({"model.rope.scaling=yarn", "model.rope.factor=8", "train.steps=12"}));
  other.push_back("--resume");
  refused(other, {"another model", "model.rope.factor=8"});
}

// Heads of 16 channels have 8 pairs; the original context is that of the first model, 32.
const Words kLongrope{"model.rope.scaling=longrope", "model.rope.short_factors=[1,1,1,1.5,2,2,2,2.5]",
                      "model.rope.long_factors=[1,1.25,1.5,2,4,8,16,32]"};

TEST_F(LongerContext, LongropeIsInCheckpointsAndInRunsFromThem) {
  runs("long", longer(kLongrope));
  const nlohmann::json config = written("long");
  EXPECT_EQ(config["original_max_position_embeddings"], 32);
  EXPECT_EQ(config["rope_scaling"]["type"], "longrope");
  EXPECT_EQ(config["rope_scaling"]["long_factor"], (nlohmann::json{1, 1.25, 1.5, 2, 4, 8, 16, 32}));
  EXPECT_FALSE(config["rope_scaling"].contains("attention_factor"));

  const std::string from = "train.init_from=long/checkpoints/step_00000008";
  runs("again", {from, "train.steps=4"});
  const std::string again = read_file(folder / "again/config.yaml");
  EXPECT_NE(again.find("long_factors: [1, 1.25, 1.5, 2, 4, 8, 16, 32]\n"), std::string::npos) << again;
  EXPECT_NE(again.find("short_factors: [1, 1, 1, 1.5, 2, 2, 2, 2.5]\n"), std::string::npos);
  Words longer_run = words("again", {from, "train.steps=8"});
  longer_run.push_back("--resume");
  EXPECT_EQ(train(longer_run).status, 0);
  Words other = words("again", {from, "train.steps=12", "model.rope.long_factors=[1,1,1,1,1,1,1,1]"});
  other.push_back("--resume");
  refused(other, {"another model", "model.rope.long_factors=[1, 1, 1, 1, 1, 1, 1, 1]"});

  // Sequences of the original context have the other list.
  const Words short_sequences{from, "train.sequence_length=32", "train.steps=4"};
  Words other_factors = short_sequences;
  other_factors.push_back("model.rope.long_factors=[9,9,9,9,9,9,9,9]");
  runs("shorter", short_sequences), runs("shorter_too", other_factors);
  EXPECT_EQ(losses("shorter"), losses("shorter_too"));
  other_factors.back() = "model.rope.short_factors=[9,9,9,9,9,9,9,9]";
  runs("shorter_other", other_factors);
  EXPECT_NE(losses("shorter"), losses("shorter_other"));
}

// transformers opens the checkpoint and computes the loss that the run recorded.
TEST_F(LongerContext, TransformersComputesTheSame) {
  if (const auto missing = missing_in_python("torch, transformers", folder); !missing.empty())
    GTEST_SKIP() << missing;
  std::string text = read_file(folder / "text.txt").substr(1000, 3 * 128 + 7);
  write("held_out.txt", text);
  for (const Words& angles : {Words{"model.rope.scaling=yarn", "model.rope.factor=4"},
                              Words{"model.rope.scaling=linear", "model.rope.factor=4"},
                              Words{"model.rope.theta=160000"}, kLongrope}) {
    Words settings = longer(angles);
    settings.insert(settings.end(), {"data.validation=held_out.txt", "evaluation.sequences=1000"});
    const std::string run = "by_" + angles[0].substr(angles[0].find('=') + 1);
    SCOPED_TRACE(run);
    runs(run, settings);
    std::string loss;
    for (const std::string& line : losses(run))
      if (line.starts_with("8 validation_loss")) loss = line.substr(line.rfind(' ') + 1);
    const ProcessResult result =
        run_process(python_program(),
                    {TESSERA_SOURCE_DIR "/tests/fixtures/check_checkpoint.py",
                     run + "/checkpoints/step_00000008", "held_out.txt", "128", loss},
                    {.folder = folder});
    EXPECT_EQ(result.status, 0) << result.out << result.error;
  }
}

}  // namespace
}  // namespace tessera::testing
