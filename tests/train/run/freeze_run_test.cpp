// train.freeze in the train program: what it prints, refuses, saves and resumes.
#include "model/formats/safetensors.h"
#include "tests/train_program.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

struct FreezeRun : TrainProgram {
  FreezeRun()
      : TrainProgram(
            "device: cpu\n"
            "model:\n  vocab_size: 257\n  context: 16\n  layers: 2\n  heads: 2\n  channels: 16\n"
            "data:\n  train: text.txt\n"
            "train:\n  folder: out\n  steps: 8\n  tokens_per_step: 64\n  micro_batch: 4\n"
            "  freeze: embeddings+blocks:0\n"
            "optimizer:\n  learning_rate: 1e-2\n  min_learning_rate: 1e-3\n  warmup_steps: 2\n"
            "evaluation:\n  every: 4\n  sequences: 4\nsampling:\n  every: 0\n"
            "checkpoint:\n  every: 4\n  keep: 0\n") {}

  std::string trains(const std::vector<std::string>& arguments) {
    const ProcessResult result = train(arguments);
    EXPECT_EQ(result.status, 0) << result.out << result.error;
    return result.out;
  }
};

TEST_F(FreezeRun, ResumesWithTheSameBits) {
  for (const std::string dtype : {"fp32", "bf16"}) {  // of the checkpoint's weights
    const std::vector<std::string> words{"--set", "checkpoint.dtype=" + dtype, "--set",
                                         "train.folder=" + dtype};
    const std::string out = trains(words);
    EXPECT_NE(out.find("embeddings+blocks:0: 7,648 of 10,960 parameters; the classifier"), std::string::npos)
        << out;
    const std::vector<std::string> whole = losses(dtype);
    const fs::path checkpoints = folder / dtype / "checkpoints";
    const SafetensorsReader moments(checkpoints / "step_00000004/optimizer.safetensors");
    for (const auto& [name, entry] : moments.entries())
      if (!name.starts_with("master.")) {
        EXPECT_EQ(name.find(".wte."), std::string::npos) << name;
        EXPECT_EQ(name.find(".h.0."), std::string::npos) << name;
      }
    const std::string last = read_file(checkpoints / "step_00000008/optimizer.safetensors");
    fs::remove_all(checkpoints / "step_00000008");
    std::vector<std::string> again = words;
    again.push_back("--resume");
    trains(again);
    EXPECT_EQ(losses(dtype), whole);
    EXPECT_TRUE(read_file(checkpoints / "step_00000008/optimizer.safetensors") == last);
  }
}

TEST_F(FreezeRun, RefusesAnotherFreezeOnResume) {
  trains({"--set", "train.steps=4"});
  refused({"--resume", "--set", "train.freeze=none"},
          {"train.freeze=embeddings+blocks:0", "has none", "train.init_from"});
  // These weights may start a run with any.
  trains({"--set", "train.init_from=out/checkpoints/step_00000004", "--set", "train.freeze=mlp", "--set",
          "train.folder=next"});
}

TEST_F(FreezeRun, RefusesWhatIsNoPartOfTheModel) {
  const auto refuse = [&](const std::string& value, std::initializer_list<const char*> parts) {
    refused({"--set", "train.freeze=" + value}, parts);
  };
  refuse("embedding", {"none", "embeddings, attention, mlp, router, norms, head, blocks:3 and blocks:0-5"});
  refuse("mlp+mlp", {"names mlp twice"});
  refuse("blocks:2-1", {"blocks:3 and blocks:0-5"});
  refuse("blocks:", {"blocks:3 and blocks:0-5"});
  refuse("blocks:1-2", {"block 2", "block 1", "model.layers 2"});
  refuse("head", {"head", "model.tied true", "embeddings freezes both"});
  refuse("embeddings+attention+mlp+norms", {"nothing to train"});
}

TEST_F(FreezeRun, ThePlanTellsWhatItSaves) {
  const std::string plan = trains({"--plan"});
  // fp32 gradients and two moments of 7,648 parameters, and of the padding of the table: 127 rows
  EXPECT_NE(plan.find("embeddings+blocks:0: 7,648 of 10,960 parameters"), std::string::npos) << plan;
  EXPECT_NE(plan.find("; saves "), std::string::npos) << plan;
  EXPECT_EQ(trains({"--plan", "--set", "train.freeze=none"}).find("frozen"), std::string::npos);
}

}  // namespace
}  // namespace tessera::testing
