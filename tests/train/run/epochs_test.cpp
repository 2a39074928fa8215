// train.epochs: the steps that it takes, and runs of the train program that go by it.
#include "train/run/epochs.h"

#include "tests/support.h"
#include "tests/train_program.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

// Steps of 4 sequences
Config of_epochs(double epochs) {
  Config config;
  config.train.epochs = epochs;
  config.train.sequence_length = 8;
  config.train.tokens_per_step = 32;
  return config;
}

RunState at_step_10(int64_t data_position) {
  RunState run;
  run.step = 10;
  run.data_position = data_position;
  return run;
}

TEST(StepsOfEpochs, AreRoundedUp) {
  const auto steps = [](double epochs, int64_t sequences, const RunState& now = {}) {
    return steps_of_epochs(of_epochs(epochs), sequences, now);
  };
  EXPECT_EQ(steps(1, 100), 25);
  EXPECT_EQ(steps(1, 101), 26);
  EXPECT_EQ(steps(3, 101), 76);    // 303 sequences, 75.75 steps
  EXPECT_EQ(steps(0.5, 100), 13);  // 50 sequences, 12.5 steps
  EXPECT_EQ(steps(0.07, 400), 7);  // 28 sequences, although 0.07 x 400 is more than 28 in binary
  EXPECT_EQ(steps(1e-6, 100), 1);  // no sequence at all, so one
  EXPECT_EQ(steps(1e6, 400), 100'000'000);
  EXPECT_THROW(steps(1e6, 40'000'000), Error);
  // A run that is at step 10: in steps of this size it has consumed 40 sequences, in smaller ones fewer.
  EXPECT_EQ(steps(1, 100, at_step_10(40)), 25);
  EXPECT_EQ(steps(1, 100, at_step_10(20)), 30);
  EXPECT_EQ(steps(1, 100, at_step_10(101)), 10);
}

struct Epochs : TrainProgram {
  Epochs()
      : TrainProgram(
            "device: cpu\n"
            "model:\n  vocab_size: 257\n  context: 32\n  layers: 1\n  heads: 2\n  channels: 32\n"
            "data:\n  train: text.txt\n  validation_fraction: 0.2\n"
            "train:\n  folder: out\n  tokens_per_step: 128\n"
            "optimizer:\n  warmup_steps: 2\n"
            "evaluation:\n  every: 0\nsampling:\n  every: 0\ncheckpoint:\n  every: 5\n  keep: 0\n") {
    // 2401 bytes to train on are 75 sequences of 32: 1 epoch is 18.75 steps of 4
    std::string text;
    while (text.size() < 3001) text += "a line of text " + std::to_string(text.size() * 7919 % 1000) + "\n";
    write("text.txt", text.substr(0, 3001));
  }

  std::string trains(std::vector<std::string> words) const {
    const ProcessResult result = train(std::move(words));
    EXPECT_EQ(result.status, 0) << result.error;
    return result.out;
  }
};

TEST_F(Epochs, AreTheStepsOfTheScheduleAndOfTheRun) {
  const std::string out = trains({"--set", "train.epochs=1.5"});
  EXPECT_NE(out.find("1.5 epochs = 29 steps"), std::string::npos) << out;  // 112 or 113 sequences
  EXPECT_NE(out.find("step 29/29"), std::string::npos) << out;
  trains({"--set", "train.steps=29", "--set", "train.folder=by_steps"});
  EXPECT_EQ(losses("out"), losses("by_steps"));
  const std::string written = read_file(folder / "out/config.yaml");
  EXPECT_NE(written.find("steps: auto\n"), std::string::npos);
  EXPECT_NE(written.find("epochs: 1.5\n"), std::string::npos);

  // Resumed from step 10, from the configuration that was written
  const std::vector<std::string> whole = losses("out");
  for (const int step : {15, 20, 25, 29})
    fs::remove_all(folder / fmt::format("out/checkpoints/step_{:08}", step));
  const ProcessResult resumed =
      run_process(TRAIN_BINARY, {"--config", "out/config.yaml", "--resume"}, {.folder = folder});
  EXPECT_EQ(resumed.status, 0) << resumed.error;
  EXPECT_EQ(losses("out"), whole);

  EXPECT_NE(trains({"--resume", "--set", "train.epochs=1.5"}).find("1.5 epochs = 29 steps. To continue"),
            std::string::npos);
  // Twice the sequences in a step: 150 - 116 are left, in steps of 8
  const std::string longer =
      trains({"--resume", "--set", "train.epochs=2", "--set", "train.tokens_per_step=256"});
  EXPECT_NE(longer.find("2 epochs = 34 steps"), std::string::npos) << longer;
  EXPECT_NE(longer.find("train.epochs: 1.5, now 2"), std::string::npos) << longer;
  EXPECT_NE(longer.find("6e-05 at step 29"), std::string::npos) << longer;
}

TEST_F(Epochs, AreInThePlan) {
  const std::string plan = trains({"--plan", "--set", "train.epochs=3"});
  EXPECT_NE(plan.find("epochs   3 = 57 steps"), std::string::npos) << plan;  // 225 sequences
  const std::string absent = trains({"--plan", "--set", "train.epochs=3", "--set", "data.train=absent.bin"});
  EXPECT_NE(absent.find("train.epochs=3 are not known"), std::string::npos) << absent;
}

TEST_F(Epochs, AndStepsAreNotBothGiven) {
  refused({"--set", "train.epochs=2", "--set", "train.steps=20"},
          {"train.epochs=2: train.epochs 2", "train.steps 20", "neither wins", "train.steps=auto",
           "train.epochs=none"});
  refused({"--set", "train.steps=auto"}, {"train.steps auto", "train.epochs none"});
  refused({"--set", "train.epochs=0"}, {"none", "above 0"});
}

}  // namespace
}  // namespace tessera::testing
