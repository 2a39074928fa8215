// The train program from the weights of a folder, with a configuration that names no sizes.
#include "tests/model/formats/folder_support.h"
#include "tests/says.h"
#include "tests/train_program.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

constexpr ModelConfig kSmallModel{.vocab_size = 257, .context = 32, .layers = 2, .heads = 2, .channels = 32};

struct InitFromRun : TrainProgram {
  InitFromRun()
      : TrainProgram(
            "device: cpu\n"
            "data:\n  train: text.txt\n"
            "train:\n  folder: out\n  init_from: weights\n  steps: 1\n  tokens_per_step: 128\n"
            "optimizer:\n  warmup_steps: 0\n"
            "evaluation:\n  every: 0\n  sequences: 1\n"
            "sampling:\n  every: 0\n") {}

  void make_weights() const {
    const ProcessResult made =
        train({"--set", "train.init_from=", "--set", "train.folder=made", "--set", "train.steps=40", "--set",
               "optimizer.learning_rate=1e-2", "--set", "model.vocab_size=257", "--set", "model.context=32",
               "--set", "model.layers=2", "--set", "model.heads=2", "--set", "model.channels=32"});
    ASSERT_EQ(made.status, 0) << made.error;
    fs::rename(folder / "made/checkpoints/step_00000040", folder / "weights");
  }
  double first_loss(const std::string& run) const {
    const std::string line = losses(run).front();
    return std::stod(line.substr(line.rfind(' ')));
  }
};

TEST_F(InitFromRun, TheFolderAloneSetsTheModel) {
  make_weights();
  const ProcessResult result = train({});
  ASSERT_EQ(result.status, 0) << result.error;
  EXPECT_LT(first_loss("out"), 4.0);  // random weights: 5.5
  EXPECT_EQ(result.out.find("dropout"), std::string::npos);
  EXPECT_NE(read_file(folder / "out/config.yaml").find("\n  layers: 2\n"), std::string::npos);
  for (const char* kind : {"interpolate", "repeat", "blend"}) {
    const std::string run = std::string("long_") + kind;
    const ProcessResult longer = train({"--set", "train.folder=" + run, "--set", "model.context=64", "--set",
                                        std::string("model.position_extension=") + kind});
    EXPECT_EQ(longer.status, 0) << longer.error;
    EXPECT_LT(first_loss(run), 5.0) << kind;
  }
  fs::remove_all(folder / "weights");  // a run that goes on has its own
  EXPECT_EQ(train({"--resume", "--set", "train.steps=2"}).status, 1);
  const ProcessResult resumed =
      run_process(TRAIN_BINARY, {"--config", "out/config.yaml", "--resume", "--set", "train.steps=2"},
                  {.folder = folder});
  EXPECT_EQ(resumed.status, 0) << resumed.error;
}

// A finetune with sparse blocks, what its folder says, and the way back
TEST_F(InitFromRun, AFullModelBecomesSparseAndFullAgain) {
  const auto trained = [&](const std::string& run, std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--set", "train.folder=" + run, "--set", "train.tokens_per_step=600"});
    const ProcessResult result = train(arguments);
    ASSERT_EQ(result.status, 0) << result.error;
  };
  trained("made", {"--set", "train.init_from=", "--set", "model.vocab_size=257", "--set", "model.context=300",
                   "--set", "model.layers=2", "--set", "model.heads=2", "--set", "model.channels=32"});
  const auto config_of = [&](const std::string& run) {
    return read_file(folder / run / "checkpoints/step_00000001/config.json");
  };
  trained("sparse", {"--set", "train.init_from=made/checkpoints/step_00000001", "--set",
                     "model.sparse=window:1+global:1,full"});
  EXPECT_TRUE(says(config_of("sparse"), {"sparse_gpt2", "window:1+global:1,full"})) << config_of("sparse");
  EXPECT_NE(first_loss("sparse"), first_loss("made"));
  trained("kept", {"--set", "train.init_from=sparse/checkpoints/step_00000001"});
  EXPECT_TRUE(says(config_of("kept"), {"sparse_gpt2", "window:1+global:1,full"}));
  trained("back",
          {"--set", "train.init_from=sparse/checkpoints/step_00000001", "--set", "model.sparse=full"});
  EXPECT_EQ(config_of("back").find("sparse"), std::string::npos);
  const ProcessResult other = run_process(TRAIN_BINARY,
                                          {"--config", "sparse/config.yaml", "--resume", "--set",
                                           "train.steps=2", "--set", "model.sparse=window:1"},
                                          {.folder = folder});
  EXPECT_EQ(other.status, 1);
  EXPECT_TRUE(says(other.error, {"model.sparse"})) << other.error;
  const ProcessResult resumed =
      run_process(TRAIN_BINARY, {"--config", "sparse/config.yaml", "--resume", "--set", "train.steps=2"},
                  {.folder = folder});
  EXPECT_EQ(resumed.status, 0) << resumed.error;
}

// Weights are looked at before the data, and so before anything slow.
TEST_F(InitFromRun, WeightsThatCannotBeTakenAreRefusedFirst) {
  const auto refused_before_data = [&](std::initializer_list<const char*> parts) {
    refused({"--set", "data.train=missing.txt"}, parts);
    EXPECT_FALSE(fs::exists(folder / "out"));
  };
  refused_before_data({"small.yaml:6:14: train.init_from: weights", "folder"});
  write_gpt2(folder / "weights", kSmallModel);
  refused({"--set", "data.train=missing.txt"}, {"missing.txt"});
  fs::resize_file(folder / "weights/model.safetensors", 5000);
  refused_before_data({"weights/model.safetensors", "truncated"});
  fs::rename(folder / "weights/model.safetensors", folder / "weights/pytorch_model.bin");
  refused_before_data({"pytorch_model.bin", "save_pretrained("});
  write_fields(folder / "weights", {{"model_type", "bert"}});
  refused_before_data({"\"model_type\"", "\"gpt2\", \"llama\"", "found \"bert\""});
}

TEST_F(InitFromRun, APlanKeepsThePositionsOfTheFolder) {
  ModelConfig model = kSmallModel;
  model.context = 512;
  write_gpt2(folder / "weights", model);
  const auto fit = [&](const std::string& extension) {
    return train({"--plan", "--fit", "context", "--device-memory", "1GiB", "--set",
                  "train.tokens_per_step=512", "--set", "model.position_extension=" + extension})
        .out;
  };
  EXPECT_NE(fit("none").find("train.sequence_length=512"), std::string::npos) << fit("none");
  EXPECT_EQ(fit("none").find("model.context="), std::string::npos) << fit("none");
  EXPECT_NE(fit("repeat").find("model.context="), std::string::npos) << fit("repeat");
}

TEST_F(InitFromRun, DropoutIsTakenOverWithANotice) {
  write_gpt2(folder / "weights", kSmallModel, {{"attn_pdrop", 0.1}});
  std::vector<FolderTensor> tensors = tensors_of(kSmallModel);
  for (FolderTensor& tensor : tensors) std::fill(tensor.values.begin(), tensor.values.end(), 0.01f);
  write_tensors(folder / "weights/model.safetensors", tensors);
  const ProcessResult result = train({});
  ASSERT_EQ(result.status, 0) << result.error;
  for (const char* part :
       {"notice", "weights/config.json", "attn_pdrop 0.1", "dropout  0.1016 (26/256) on attention\n"})
    EXPECT_NE(result.out.find(part), std::string::npos) << result.out;
  const ProcessResult without = train({"--overwrite", "--set", "model.dropout=0"});
  ASSERT_EQ(without.status, 0) << without.error;
  EXPECT_EQ(without.out.find("dropout"), std::string::npos) << without.out;
}

}  // namespace
}  // namespace tessera::testing
