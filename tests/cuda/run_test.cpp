// The train program on a GPU: resuming gives the same bits, and what does not fit is refused with advice.
#include <gtest/gtest.h>

#include "kernels/attention/cudnn.h"
#include "kernels/backend.h"
#include "tests/cuda/train_on_gpu.h"
#include "tests/tolerances.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

struct CudaRun : TrainOnGpu {
  CudaRun()
      : TrainOnGpu(
            "device: cuda\n"
            "model:\n  vocab_size: 257\n  context: 256\n  layers: 2\n  heads: 2\n  channels: 128\n"
            "data:\n  train: text.txt\n"
            "train:\n  folder: out\n  steps: 20\n  tokens_per_step: 4096\n"
            "optimizer:\n  learning_rate: 3e-3\n  warmup_steps: 2\n"
            "evaluation:\n  every: 10\n"
            "sampling:\n  every: 20\n  tokens: 8\n"
            "checkpoint:\n  every: 7\n  keep: 0\n") {}
};

TEST_F(CudaRun, ResumesBitForBit) {
  for (const char* set : {"train.precision=bf16", "train.precision=fp32", "optimizer.moments=bf16"}) {
    SCOPED_TRACE(set);
    ASSERT_EQ(train({"--overwrite", "--set", set}).status, 0);
    fs::remove_all(folder / "cut");
    fs::copy(folder / "out", folder / "cut", fs::copy_options::recursive);
    fs::remove_all(folder / "cut/checkpoints/step_00000020");
    fs::remove_all(folder / "cut/checkpoints/step_00000014");
    const ProcessResult resumed = train({"--resume", "--set", "train.folder=cut", "--set", set});
    ASSERT_EQ(resumed.status, 0) << resumed.error;
    EXPECT_EQ(losses("out"), losses("cut"));
    EXPECT_EQ(losses("out").size(), 2u * 20 + 4);
  }
}

// A prompt of one token, which cuDNN serves forward alone
TEST_F(CudaRun, CudnnTrainsEvaluatesAndSamples) {
  std::string why_not;
  if (!attention::cudnn_available(why_not)) GTEST_SKIP() << "no cuDNN: " << why_not;
  const auto last_loss = [&](const char* attention) {
    const ProcessResult result = train(
        {"--overwrite", "--set", std::string("model.attention=") + attention, "--set", "sampling.prompt=a"});
    EXPECT_EQ(result.status, 0) << result.error;
    double loss = 0;
    for (const std::string& line : losses("out"))
      if (line.find(" validation_loss ") != std::string::npos) loss = std::stod(line.substr(line.rfind(' ')));
    return loss;
  };
  EXPECT_NEAR(last_loss("cudnn") / last_loss("flash"), 1, tolerance::kBf16ModelLoss);
}

TEST_F(CudaRun, WhatDoesNotFitIsRefusedWithAdvice) {
  const ProcessResult result = train({"--set", "model.channels=16384", "--set", "model.heads=128", "--set",
                                      "model.layers=60", "--set", "train.micro_batch=16", "--gpus", "1"});
  EXPECT_EQ(result.status, 1);
  for (const char* part :
       {"this run does not fit", "free now", "weights", "optimizer", "--set train.micro_batch=1"})
    EXPECT_NE(result.error.find(part), std::string::npos) << result.error;
  EXPECT_FALSE(fs::exists(folder / "out"));
}

TEST_F(CudaRun, AHeadDimThatNoKernelServesIsRefused) {
  const ProcessResult result = train({"--set", "model.channels=1024"});  // head dim 512
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.error.find("8 up to 256 in bf16"), std::string::npos) << result.error;
  std::vector<std::string> naive{"--set", "model.channels=1024", "--set", "model.attention=naive",
                                 "--set", "train.steps=2"};
  const ProcessResult samples = train(naive);
  EXPECT_EQ(samples.status, 1);
  EXPECT_NE(samples.error.find("sampling.every=0"), std::string::npos) << samples.error;
  naive.insert(naive.end(), {"--set", "sampling.every=0"});
  EXPECT_EQ(train(naive).status, 0);
}

}  // namespace
}  // namespace tessera::testing
