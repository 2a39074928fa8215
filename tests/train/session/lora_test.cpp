// train.lora: gradients, initial values, memory, recomputation and several ranks.
#include <optional>

#include "tests/data_parallel.h"
#include "tests/lora_steps.h"
#include "train/parallel/make_communicator.h"
#include "train/session/decoder.h"

namespace tessera::testing {
namespace {

const DeviceTraits kPlainCpu{.device = Device::kCpu};

TEST(Lora, GradientsFollowFromThoseOfTheWholeWeights) {
  for (const ModelConfig& model : all_models_with_adapters(24, 3)) {
    SCOPED_TRACE(fmt::format("{}, {}", name_of(model.mlp), text_of(model.lora)));
    expect_gradients_of_whole_weights(kPlainCpu, model, DType::kF32, tolerance::kFirstLossOfRanks,
                                      tolerance::kCpuAgainstPyTorch);
  }
}

// B is 0: the first loss is that of the model without adapters, to the bit, and so are the weights of a seed.
TEST(Lora, BeginsAsTheModelWithoutIt) {
  const ModelConfig model = models_with_adapters(24, 3)[1];
  HostTensors make;
  LoraSteps adapted(kPlainCpu, lora_shape(model)), plain(kPlainCpu, lora_shape(model.base()));
  const std::vector<NamedTensor> own = adapted.weights(make), weights = plain.weights(make);
  for (size_t i = 0; i < weights.size(); ++i) {
    EXPECT_EQ(own[i].name, weights[i].name);
    EXPECT_EQ(std::memcmp(own[i].tensor.data, weights[i].tensor.data, weights[i].tensor.bytes()), 0);
  }
  for (const ParamPlace& place : adapted.state.store().layout().places) {
    if (place.info.adapter == AdapterMatrix::kNone) continue;
    const double bound = 1 / std::sqrt(static_cast<double>(place.info.shape[1]));
    double sum = 0, largest = 0;
    for (const float value : floats(own[place.index].tensor)) {
      sum += static_cast<double>(value);
      largest = std::max(largest, std::abs(static_cast<double>(value)));
    }
    if (place.info.adapter == AdapterMatrix::kB) {
      EXPECT_EQ(largest, 0);
      continue;
    }
    const auto count = static_cast<double>(place.info.shape.numel());
    EXPECT_LE(largest, bound);
    EXPECT_GT(largest, 0.8 * bound);
    // Five deviations of a mean of uniform numbers
    EXPECT_LT(std::abs(sum / count), 5 * bound / std::sqrt(3 * count));
  }
  EXPECT_EQ(adapted.step(1).loss, plain.step(1).loss);
}

TEST(Lora, WhatIsComputedAgainHasTheSameBits) {
  for (const ModelConfig& model : all_models_with_adapters(24, 2)) {
    std::optional<std::vector<double>> first;
    for (const ByBlock<Keep>& keep :
         {ByBlock<Keep>(kKeepAll), ByBlock<Keep>(kKeepAllButMlp), ByBlock<Keep>(kKeepAttention),
          ByBlock<Keep>(kKeepOutputs), ByBlock<Keep>(Keep{Recomputed::kNorms, Recomputed::kAttention}),
          ByBlock<Keep>({{kKeepOutputs, 1}, {kKeepAll}}), ByBlock<Keep>({{kKeepAll, 1}, {kKeepAttention}})}) {
      RunShape shape = lora_shape(model);
      shape.keep = keep;
      LoraSteps steps(kPlainCpu, shape);
      std::vector<double> found;
      for (int i = 1; i <= 4; ++i) {
        const auto result = steps.step(i);
        found.insert(found.end(), {result.loss, result.grad_norm});
      }
      if (!first) first = found;
      EXPECT_EQ(found, *first);
    }
    EXPECT_LT((*first)[6], (*first)[0]) << "nothing was learned";
  }
}

TEST(Lora, ThePlanIsTheLedger) {
  for (const ModelConfig& model : all_models_with_adapters(24, 2))
    for (const ByBlock<Keep>& keep : {ByBlock<Keep>(kKeepAll), ByBlock<Keep>(kKeepOutputs),
                                      ByBlock<Keep>({{kKeepAttention, 1}, {kKeepAll}})}) {
      RunShape shape = lora_shape(model);
      shape.keep = keep;
      expect_plan_is_the_step(kPlainCpu, shape);
    }
}

// Token by token over a cache, as the whole text at once
TEST(Lora, DecodesWithTheAdapters) {
  for (const ModelConfig& model : all_models_with_adapters(24, 3)) {
    LoraSteps steps(kPlainCpu, lora_shape(model)), plain(kPlainCpu, lora_shape(model.base()));
    steps.set_b();
    Session& session = steps.state.session();
    std::vector<int32_t> text{5, 1, 60, 2, 2};
    Decoder decoder(session, {.capacity = model.context});
    decoder.start(0, text, 0);
    for (int i = 0; i < 3; ++i) {
      HostTensors make;
      const auto tensor = [&](const std::vector<float>& values) {
        const Tensor t = make.empty({static_cast<int64_t>(values.size())});
        std::ranges::copy(values, t.as<float>());
        return t;
      };
      const Tensor whole = tensor(session.last_logits(text, 1));
      EXPECT_LT(relative_error(tensor(decoder.logits(0)), whole), tolerance::kCpuAgainstPyTorch);
      EXPECT_GT(relative_error(tensor(plain.state.session().last_logits(text, 1)), whole), 1e-3);
      text.push_back(decoder.next({}, 1)[0]);
    }
  }
}

// On a GPU the weights are bf16; adapters alone have gradients, fp32 masters and moments.
TEST(Lora, SavesGradientsAndTheOptimizer) {
  const DeviceTraits gpu{.device = Device::kCuda, .arch = 90};
  RunShape whole{.model = {.vocab_size = 50257, .context = 1024, .layers = 12, .heads = 12, .channels = 768},
                 .micro_batch = 1,
                 .micro_steps = 1,
                 .sequence_length = 1024,
                 .dtype = DType::kBF16};
  RunShape adapted = whole;
  adapted.model = with_adapters(whole.model, 16);
  adapted.freeze = Freeze::all_but_adapters();
  const MemoryLedger all = plan_memory(whole, gpu), some = plan_memory(adapted, gpu);
  const int64_t C = 768, trained = 12 * 16 * ((C + 3 * C) + (C + C) + (C + 4 * C) + (4 * C + C));
  EXPECT_EQ(adapted.model.parameters() - whole.model.parameters(), trained);
  EXPECT_EQ(frozen_parameters(adapted.model, adapted.freeze), whole.model.parameters());
  const auto peak = [](const MemoryLedger& ledger, MemoryTag tag) {
    return ledger.peak_of_each()[static_cast<int>(tag)];
  };
  EXPECT_EQ(peak(some, MemoryTag::kWeights) - peak(all, MemoryTag::kWeights), 2 * trained);
  // bf16 gradients, and those of frozen norms, which are discarded: two of C
  EXPECT_EQ(peak(some, MemoryTag::kGradients), 2 * trained + 2 * 2 * C);
  EXPECT_NEAR(peak(some, MemoryTag::kOptimizer), 10 * trained, 256);  // and the norm of the gradients
  // 6 a parameter, without 2 for the gradient of a frozen matrix; and attention
  const auto frozen = static_cast<double>(whole.model.parameters());
  const double matrices = 12.0 * 12 * C * C + 50257.0 * C;
  EXPECT_NEAR(adapted.flops_per_token(),
              6 * (frozen + static_cast<double>(trained)) - 2 * matrices + 6.0 * 12 * C * 1024, 1);
}

void train_adapters(RunShape& shape) {
  shape.model = with_adapters(shape.model, 4);
  shape.freeze = Freeze::all_but_adapters();
}

void train_adapters_of_experts(RunShape& shape) {
  shape.model = models_with_adapted_experts(shape.model.channels, 4)[0];
  shape.freeze = Freeze::all_but_adapters();
}
TEST(Lora, TwoRanksWithExpertsAndSplitWeights) {
  expect_the_losses_of_one(Shard::kWeights, train_adapters_of_experts);
}

TEST(Lora, TwoRanksWithShardedOptimizer) { expect_the_losses_of_one(Shard::kOptimizer, train_adapters); }
TEST(Lora, TwoRanksWithWholeOptimizers) { expect_the_losses_of_one(Shard::kNone, train_adapters); }
TEST(Lora, TwoRanksWithSplitGradients) { expect_the_losses_of_one(Shard::kGradients, train_adapters); }
TEST(Lora, TwoRanksWithSplitWeights) { expect_the_losses_of_one(Shard::kWeights, train_adapters); }

}  // namespace
}  // namespace tessera::testing
