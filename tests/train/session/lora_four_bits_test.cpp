// train.lora.base=nf4, nf4_double and mxfp4: frozen matrices of blocks take 4.5, 4.127 and 4.25 bits a
// number.
#include "tests/lora_four_bits.h"

#include <filesystem>

#include "model/formats/weights.h"
#include "tests/offloaded_steps.h"
#include "tests/says.h"
#include "train/run/checkpoint.h"

namespace tessera::testing {
namespace {

const DeviceTraits kCpu{.device = Device::kCpu};

std::vector<ModelConfig> small_models() { return models_for_four_bits(64, 3); }

class LoraFourBits : public ::testing::TestWithParam<BaseForm> {
 protected:
  static RunShape in_four_bits(const RunShape& shape) { return lora_four_bits_shape(shape, GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(All, LoraFourBits, ::testing::ValuesIn(kFourBitBases),
                         [](const auto& format) { return std::string(name_of(format.param)); });

TEST_P(LoraFourBits, HasTheBitsOfRoundedWeights) {
  for (const ModelConfig& model : small_models())
    for (const Keep keep : {kKeepAll, kKeepOutputs})
      for (const bool graphs : {false, true}) {
        SCOPED_TRACE(
            fmt::format("{}, {}, recompute {}", name_of(model.mlp), text_of(model.lora), text_of(keep)));
        RunShape shape = lora_shape(model);
        shape.keep = keep, shape.cuda_graphs = graphs;
        expect_bits_of_rounded_weights(kCpu, shape, GetParam());
      }
}

// Values that are in 4 bits already are kept: rounding them again changes nothing, unless scales have a mean.
TEST(LoraOverFourBits, RoundsWhatIsRoundedToItself) {
  for (const BaseForm base : {BaseForm::kNf4, BaseForm::kMxfp4}) {
    HostTensors make;
    const RunShape shape = lora_four_bits_shape(lora_shape(small_models()[1]), base);
    LoraSteps first(kCpu, shape), second(kCpu, shape);
    const std::vector<NamedTensor> values = weights_read(first.state, make);
    take_weights_of(second, values);
    const std::vector<NamedTensor> again = weights_read(second.state, make);
    for (size_t i = 0; i < values.size(); ++i)
      EXPECT_EQ(std::memcmp(values[i].tensor.data, again[i].tensor.data, values[i].tensor.bytes()), 0)
          << values[i].name;
  }
}

TEST_P(LoraFourBits, OnTheHostChangesNoBit) {
  for (const Keep keep : {kKeepAll, kKeepOutputs})
    for (const int64_t layers : {1, 2, 5}) {
      RunShape shape = in_four_bits(lora_shape(small_models()[1]));
      shape.keep = keep, shape.model.layers = layers;
      expect_offload_changes_no_bit({}, shape, {.weights = true});
    }
}

TEST_P(LoraFourBits, ThePlanIsTheLedger) {
  for (const ModelConfig& model : small_models())
    for (const bool on_host : {false, true}) {
      RunShape shape = in_four_bits(lora_shape(model));
      shape.offload.weights = on_host;
      expect_plan_is_the_step(kCpu, shape);
    }
}

// In place of two bytes a number takes half a byte, and its scale 4 bytes for 64 numbers (NF4), 1 byte for 64
// and 4 for 16,384 (NF4 double), or 1 byte for 32 (MXFP4). Beside it are the matrices of one block in bf16.
TEST_P(LoraFourBits, PlansSoManyBitsANumber) {
  ModelConfig model =
      with_adapters({.vocab_size = 61, .context = 64, .layers = 12, .heads = 4, .channels = 256}, 16);
  RunShape plain = lora_shape(model, DType::kBF16);
  plain.sequence_length = 64;
  const auto weights = [&](const RunShape& shape) {
    return plan_memory(shape, {.device = Device::kCuda, .arch = 90})
        .peak_of_each()[static_cast<int>(MemoryTag::kWeights)];
  };
  const int64_t block = 12 * 256 * 256, slack = 5 * 4096;
  const double bits = GetParam() == BaseForm::kNf4         ? 4.5
                      : GetParam() == BaseForm::kNf4Double ? 4 + 8.0 / 64 + 32.0 / 64 / 256
                                                           : 4.25;
  EXPECT_NEAR(static_cast<double>(weights(plain) - weights(in_four_bits(plain))),
              static_cast<double>(12 * block) * (2 - bits / 8) - 2.0 * block, slack);
}

TEST_P(LoraFourBits, RefusesRowsThatBlocksDoNotFill) {
  const int block = block_of(format_of(GetParam()));
  const RunShape shape = in_four_bits(lora_shape(models_with_adapters(block / 2, 3)[0]));
  try {
    LoraSteps steps(kCpu, shape);
    FAIL();
  } catch (const Error& error) {
    EXPECT_TRUE(says(error.what(), {fmt::format("{} inputs", block / 2),
                                    fmt::format("multiples of {}", block), "train.lora.base=auto"}));
  }
}

// Experts of a folder in MXFP4, as gpt-oss is published, have the values there that the folder says.
TEST(LoraOverMxfp4, ExpertsOfAFolderKeepTheirValues) {
  const std::filesystem::path folder = std::filesystem::path(TESSERA_SOURCE_DIR) / "tests/fixtures/mxfp4";
  RunShape shape = lora_shape(with_adapters(read_model_config(folder).model, 3));
  for (const bool experts_only : {false, true}) {
    shape.base_of_experts = experts_only;
    LoraSteps kept({.device = Device::kCpu}, lora_four_bits_shape(shape, BaseForm::kMxfp4));
    load_base(folder, kept.state, {});
    HostTensors make;
    const std::vector<NamedTensor> found = weights_read(kept.state, make);
    int experts = 0, others = 0, rounded = 0;
    load_weights(folder, shape.model.base(), [&](const ParamPlace& place, const Tensor& values) {
      const auto& one = *std::ranges::find(found, place.info.name, &NamedTensor::name);
      const bool same = std::memcmp(one.tensor.data, values.data, values.bytes()) == 0;
      if (place.info.linear && place.info.linear->of_experts() && place.info.shape.rank() == 3) {
        EXPECT_TRUE(same) << one.name;
        ++experts;
      } else {
        same ? ++others : ++rounded;
      }
    });
    EXPECT_EQ(experts, 2);
    EXPECT_GT(others, 0);
    EXPECT_EQ(rounded > 0, !experts_only) << "attention's matrices are in bf16 in that folder";
  }
}

// The dense matrices stay as they are, and those of experts are stored.
TEST_P(LoraFourBits, OfExpertsOnlyHasTheBitsOfTheirRoundedWeights) {
  int models = 0;
  for (const ModelConfig& model : small_models()) {
    if (!model.experts) continue;
    RunShape shape = lora_shape(model);
    shape.base_of_experts = true;
    expect_bits_of_rounded_weights(kCpu, shape, GetParam());
    shape = in_four_bits(shape);
    expect_plan_is_the_step(kCpu, shape);
    shape.offload.weights = true;
    expect_plan_is_the_step(kCpu, shape);
    ++models;
  }
  EXPECT_GT(models, 0);
}

TEST_P(LoraFourBits, OfExpertsOnlyOnTheHostChangesNoBit) {
  const std::vector<ModelConfig> models = small_models();
  RunShape shape = in_four_bits(lora_shape(
      *std::ranges::find_if(models, [](const ModelConfig& model) { return bool(model.experts); })));
  shape.base_of_experts = true;
  expect_offload_changes_no_bit({}, shape, {.weights = true});
}

TEST_P(LoraFourBits, RanksHaveTheBitsOfOne) {
  std::string why_not;
  if (!can_communicate(Device::kCpu, why_not)) GTEST_SKIP() << why_not;
  const auto compare = [base = GetParam()](const Ranks& ranks) {
    const auto run = [&](Shard shard, const Offload& offload) {
      RunShape shape = shared_shape(ranks.size, shard);
      shape.model.channels = 64, shape.model.head_dim = 32, shape.model.mlp_width = 128;
      shape.model = with_adapters(shape.model, 4);
      shape = lora_four_bits_shape(shape, base);
      shape.micro_batch = shape.micro_steps, shape.micro_steps = 1;
      shape.offload = offload, shape.poison = offload ? Poison::kYes : Poison::kNo;
      std::string weights;
      const std::vector<double> losses =
          run_shared(ranks, {.shape = shape, .steps = 3, .after = [&](TrainState& state) {
                               HostTensors make;
                               for (const NamedTensor& one : weights_read(state, make))
                                 weights.append(one.tensor.as<char>(), one.tensor.bytes());
                             }});
      return std::pair(losses, weights);
    };
    const auto whole = run(Shard::kOptimizer, {});
    EXPECT_TRUE(run(Shard::kWeights, {}) == whole);
    EXPECT_TRUE(run(Shard::kWeights, {.weights = true}) == whole);
  };
  for (const int count : {2, 3}) on_ranks(count, compare);
}

}  // namespace
}  // namespace tessera::testing
