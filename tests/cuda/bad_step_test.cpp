// Steps that go bad on a GPU: what is planted into operations or weights is found and named, and a skipped
// step changes nothing.
#include <cmath>

#include "tests/bad_step_run.h"
#include "tests/cuda/train_on_gpu.h"
#include "train/launch/process_group.h"

namespace tessera::testing {
namespace {

struct CudaBadStep : TrainOnGpu {
  CudaBadStep()
      : TrainOnGpu(
            "device: cuda\n"
            "model:\n  vocab_size: 257\n  context: 64\n  layers: 2\n  heads: 2\n  channels: 128\n"
            "data:\n  train: text.txt\n"
            "train:\n  folder: out\n  steps: 4\n  tokens_per_step: 512\n  micro_batch: 2\n"
            "evaluation:\n  every: 0\nsampling:\n  every: 0\ncheckpoint:\n  every: 2\n") {}

  std::string message_of(const BadStepRun& run) const { return testing::message_of(folder, run); }
};

TEST_F(CudaBadStep, FindsAWeight) {
  const auto spoils = [](OpenRun& run) { spoil(run, "blocks.1.mlp.expand.weight", 5 * 128 + 3); };
  for (const char* set : {"train.precision=bf16", "train.precision=fp32"})
    expect_parts(message_of({.settings = {set}, .spoils = spoils}),
                 {"step 1: the loss is nan", "linear forward in block 1, in the forward, micro-batch 1 of 4",
                  "(blocks.1.mlp.expand.weight, ", "1 of 65536 values is not finite", "the first at [5, 3]",
                  "text.txt, tokens "});
}

TEST_F(CudaBadStep, FindsAHead) {
  const auto fault = [](const AnyOp& op, Backend& be, const Launch& on) {
    const auto* forward = std::get_if<const AttentionForward*>(&op);
    if (!forward || be.place().block != 1 || be.place().micro_batch == OpPlace::kOutside) return;
    change_values((*forward)->y.tensor, be, on,  // [2, 64, 2, 64]: sequence 1, token 9, head 1
                  [](std::span<float> y) { y[((64 + 9) * 2 + 1) * 64] = NAN; });
  };
  expect_parts(message_of({.settings = {"train.cuda_graphs=false"}, .fault = fault}),
               {"attention forward in block 1, in the forward, micro-batch 1 of 4",
                "attention output, bf16 [2, 64, 2, 64]", "the first at [1, 9, 1, 0]",
                "is of token 9 of sequence 1: "});
}

TEST_F(CudaBadStep, FindsAnOverflowInFp8) {
  DeviceTraits device;
  std::string why_not;
  constexpr int kOldestWithFp8 = 89;
  if (!find_cuda_device(device, why_not) || device.arch < kOldestWithFp8)
    GTEST_SKIP() << "FP8 needs compute capability 8.9";
  expect_parts(message_of(overflow_in_fp8(128, {})),
               {"step 1: the loss is ", "linear forward in block 1, in the forward, micro-batch 1 of 4",
                "All that it reads is finite", "of 65536 values", "the first at [2, 5]", "x (FP8 operand, ",
                "weight (FP8 blocks.1.mlp.expand, ", "is of token 2 of sequence 0: "});
}

TEST_F(CudaBadStep, FindsAGradientInsideABlock) {
  const auto fault = [](const AnyOp& op, Backend& be, const Launch& on) {
    const auto* backward = std::get_if<const AttentionBackward*>(&op);
    if (backward && be.place().block == 0 && be.place().micro_batch == 2)
      change_values((*backward)->dq.tensor, be, on, [](std::span<float> dq) { dq[40] = INFINITY; });
  };
  expect_parts(
      message_of({.settings = {"train.cuda_graphs=false"}, .fault = fault}),
      {"attention backward in block 0, in the backward, micro-batch 3 of 4", "All that it reads is finite"});
}

TEST_F(CudaBadStep, SuspectsTheHardware) {
  int64_t times = 0;
  const auto fault = [&](const AnyOp& op, Backend& be, const Launch& on) {
    const auto* forward = std::get_if<const AttentionForward*>(&op);
    if (forward && be.place().block == 0 && be.place().micro_batch == 0 && ++times == 3)
      change_values((*forward)->y.tensor, be, on, [](std::span<float> y) { y[3] = NAN; });
  };
  expect_parts(message_of({.settings = {"train.cuda_graphs=false"}, .fault = fault}),
               {"step 3: the loss is nan", "the hardware is suspect", "step_00000002"});
}

TEST_F(CudaBadStep, ASkippedStepChangesNoWeight) {
  int64_t forwards = 0;
  std::vector<std::vector<float>> weights;
  const auto fault = [&](const AnyOp& op, Backend& be, const Launch& on) {
    const auto* forward = std::get_if<const AttentionForward*>(&op);
    if (forward && be.place().block == 0 && be.place().micro_batch == 0 && ++forwards == 2)
      change_values((*forward)->y.tensor, be, on, [](std::span<float> y) { y[3] = NAN; });
    const auto* adamw = std::get_if<const AdamW*>(&op);
    if (!adamw) return;
    weights.emplace_back();
    change_values((*adamw)->parts[0].param, be, on,
                  [&](std::span<float> values) { weights.back().assign(values.begin(), values.end()); });
  };
  EXPECT_EQ(message_of({.settings = {"train.cuda_graphs=false", "train.on_bad_step.nonfinite=skip"},
                        .fault = fault}),
            "");
  ASSERT_GE(weights.size(), 3u);
  const size_t a_step = weights.size() / 4;  // AdamW may take a step in parts
  EXPECT_EQ(weights[0], weights[a_step]);
  EXPECT_NE(weights[a_step], weights[2 * a_step]);
}

}  // namespace
}  // namespace tessera::testing
