// train.freeze: what is frozen keeps its bits, what is trained gets the gradients that it would get anyway.
#include "tests/data_parallel.h"
#include "tests/frozen_steps.h"
#include "tests/model_families.h"
#include "tests/tolerances.h"
#include "train/parallel/make_communicator.h"

namespace tessera::testing {
namespace {

TEST(Freeze, WhatIsTrainedGetsTheSameGradientsAndWhatIsNotKeepsItsBits) {
  const ModelConfig qwen3 =
      with_qwen3_parts({.vocab_size = 61, .context = 24, .layers = 2, .heads = 2, .channels = 24});
  for (const ModelConfig& model : {kSharedModel, qwen3})
    expect_frozen_keep_their_bits({.device = Device::kCpu}, model, DType::kF32);
}

TEST(Freeze, SavesGradientsAndTheOptimizer) {
  const DeviceTraits gpu{.device = Device::kCuda, .arch = 90};
  RunShape shape{.model = {.vocab_size = 50257, .context = 1024, .layers = 12, .heads = 12, .channels = 768},
                 .micro_batch = 1,
                 .micro_steps = 1,
                 .sequence_length = 1024,
                 .dtype = DType::kBF16};
  const MemoryLedger all = plan_memory(shape, gpu);
  shape.freeze = frozen({ParamPart::kEmbeddings}, {{0, 5}});
  const MemoryLedger some = plan_memory(shape, gpu);
  const auto frozen_elements = static_cast<double>(frozen_parameters(shape.model, shape.freeze));
  const auto saved = [&](MemoryTag tag) {
    return static_cast<double>(all.peak_of_each()[static_cast<int>(tag)] -
                               some.peak_of_each()[static_cast<int>(tag)]);
  };
  // bf16 gradients; the lower bits of masters, and two fp32 moments. Within the padding: 47 rows of the
  // token table, and vectors
  EXPECT_NEAR(saved(MemoryTag::kGradients), 2 * frozen_elements, 2e5);
  EXPECT_NEAR(saved(MemoryTag::kOptimizer), 10 * frozen_elements, 5e5);
  EXPECT_EQ(saved(MemoryTag::kWeights), 0);
  EXPECT_LT(shape.flops_per_token(), shape.model.flops_per_token(1024));
}

void freeze_parts(RunShape& shape) {
  shape.freeze = frozen({ParamPart::kEmbeddings, ParamPart::kNorms}, {{1, 1}});
}

TEST(Freeze, TwoRanksWithShardedOptimizer) { expect_the_losses_of_one(Shard::kOptimizer, freeze_parts); }
TEST(Freeze, TwoRanksWithWholeOptimizers) { expect_the_losses_of_one(Shard::kNone, freeze_parts); }
TEST(Freeze, TwoRanksWithSplitGradients) { expect_the_losses_of_one(Shard::kGradients, freeze_parts); }
TEST(Freeze, TwoRanksWithSplitWeights) { expect_the_losses_of_one(Shard::kWeights, freeze_parts); }

}  // namespace
}  // namespace tessera::testing
