// train.lora with train.gemm_dtype=fp8: frozen weights have FP8 values alone. And trained weights in FP8 that
// are gathered, or copied from the host.
#include <map>

#include "tests/stored_fp8.h"

namespace tessera::testing {
namespace {

const DeviceTraits kOnCpu{.device = Device::kCpu};
constexpr Fp8Config kEdges{.edges = true}, kWithHead{.edges = true, .head = true};

std::vector<ModelConfig> lora_models() {
  std::vector<ModelConfig> models = all_models_with_adapters(32, 3);
  models[1].tied = false;
  return models;
}

TEST(LoraFp8, TheFirstStepIsThatOfTrainingInFp8) {
  for (const ModelConfig& model : lora_models())
    for (const Fp8Config& config :
         {kEdges, kWithHead, Fp8Config{.scaling = Fp8Scaling::kCurrent, .edges = true}}) {
      SCOPED_TRACE(
          fmt::format("{}, {}, {}", name_of(model.mlp), text_of(model.lora), fp8_text(model, config)));
      expect_first_step_of_fp8_training(kOnCpu, model, config, DType::kF32, 0, tolerance::kCpuAgainstPyTorch);
    }
}

TEST(LoraFp8, EvaluatesAndTrainsWithTheValuesThatAreKept) {
  for (const ModelConfig& model : lora_models())
    for (const Fp8Config& config : {kEdges, kWithHead}) {
      SCOPED_TRACE(
          fmt::format("{}, {}, {}", name_of(model.mlp), text_of(model.lora), fp8_text(model, config)));
      expect_weights_are_those_kept(kOnCpu, model, config, DType::kF32);
    }
}

TEST(LoraFp8, LearnsAndHasTheSameBitsRecomputedAndInGraphs) {
  const ModelConfig model = lora_models()[0];
  std::optional<std::vector<double>> first;
  for (const Keep keep : {kKeepAll, kKeepOutputs})
    for (const bool graphs : {false, true}) {
      RunShape shape = lora_fp8_shape(model, kWithHead);
      shape.keep = keep, shape.cuda_graphs = graphs;
      LoraSteps steps(kOnCpu, shape);
      std::vector<double> losses;
      for (int i = 1; i <= 6; ++i) losses.push_back(steps.step(i).loss);
      if (!first) first = losses;
      EXPECT_EQ(losses, *first);
    }
  EXPECT_LT(first->back(), first->front()) << "nothing was learned";
}

// FP8 leaves out matrices outside the blocks, the first and the last block, and routers.
TEST(LoraFp8, KeepsInFp8WhatIsMultipliedInIt) {
  ModelConfig model = lora_models()[1], experts = models_with_adapted_experts(32, 3)[0];
  model.layers = 3;
  struct Case {
    const ModelConfig& model;
    Fp8Config config;
    int alone;
  };
  // A block with experts has two matrices more than others: those of the shared expert
  const Case cases[] = {{model, {}, 4},         {model, kEdges, 12},
                        {model, kWithHead, 13}, {model, {.head = true}, 5},
                        {experts, {}, 4},       {experts, kEdges, 16}};
  for (const auto& [of, config, alone] : cases) {
    LoraSteps steps(kOnCpu, lora_fp8_shape(of, config));
    int found = 0;
    for (const ParamPlace& place : steps.state.store().layout().places) {
      found += place.stored == StoredAs::kOnly;
      EXPECT_NE(place.stored, StoredAs::kBeside);
    }
    EXPECT_EQ(found, alone);
    EXPECT_THROW(steps.state.store().weights(), Error);
  }
}

TEST(LoraFp8, ThePlanIsTheLedger) {
  for (const ModelConfig& model : lora_models())
    for (const bool on_host : {false, true}) {
      RunShape shape = lora_fp8_shape(model, kWithHead);
      shape.offload.weights = on_host;
      expect_plan_is_the_step(kOnCpu, shape);
    }
}

// On a GPU a frozen matrix takes a byte a value in place of two, and the matrices of one block two more.
TEST(LoraFp8, PlansOneByteAWeight) {
  const DeviceTraits gpu{.device = Device::kCuda, .arch = 90};
  ModelConfig model =
      with_adapters({.vocab_size = 61, .context = 64, .layers = 12, .heads = 4, .channels = 256}, 16);
  RunShape plain = lora_shape(model, DType::kBF16);
  plain.sequence_length = 64;
  RunShape in_fp8 = plain;
  in_fp8.fp8 = {.gemm_dtype = GemmDtype::kFp8, .edges = true};
  const auto weights = [&](RunShape shape, const Offload& offload = {}) {
    shape.offload = offload;
    return plan_memory(shape, gpu).peak_of_each()[static_cast<int>(MemoryTag::kWeights)];
  };
  const int64_t block = 12 * 256 * 256, scales = 4096;
  EXPECT_NEAR(weights(plain) - weights(in_fp8), 12 * block - 2 * block, 3 * scales);
  const Offload on_host{.weights = true};
  EXPECT_NEAR(weights(plain, on_host) - weights(in_fp8, on_host), 2 * 2 * block - (2 + 2) * block,
              3 * scales);
}

// Copies of weights that lie on the host, while what is handed over is poisoned
TEST(StoredFp8, OnTheHostChangesNoBit) {
  for (const auto& [name, make_shape] : kTrained)
    for (const Keep keep : {kKeepAll, kKeepOutputs})
      for (const int64_t layers : {1, 2, 5}) {
        SCOPED_TRACE(fmt::format("{}, recompute {}, {} layers", name, text_of(keep), layers));
        RunShape shape = make_shape(shared_shape(1));
        shape.keep = keep, shape.model.layers = layers;
        expect_offload_changes_no_bit({}, shape, {.weights = true});
      }
}

// One micro-step, so that gradients have the same sums however they are split: FP8 values that are gathered,
// from the device or the host, give the bits of those that each rank makes of whole weights.
TEST(StoredFp8, GatheredGivesTheBitsOfWholeWeights) {
  std::string why_not;
  if (!can_communicate(Device::kCpu, why_not)) GTEST_SKIP() << why_not;
  for (const int count : {2, 3})
    on_ranks(count, [](const Ranks& ranks) { expect_gathered_gives_the_bits_of_whole(ranks, kOnCpu); });
}

// The FP8 values of a matrix that a lease has, and their transpose, are what one rank rounds of the whole.
void expect_values_of_whole(const StoredMatrix& one, const Tensor& weight) {
  round_to_e4m3(weight);
  EXPECT_EQ(std::memcmp(one.values.data.data, weight.data, weight.bytes()), 0) << one.layer;
  const int64_t O = weight.shape[-2], C = weight.shape[-1];  // of experts several times
  const float *transposed = one.transposed.as<float>(), *plain = weight.as<float>();
  for (int64_t first = 0; first < weight.numel(); first += O * C)
    for (int64_t o = 0; o < O; ++o)
      for (int64_t c = 0; c < C; ++c)
        ASSERT_EQ(transposed[first + c * O + o], plain[first + o * C + c]) << one.layer;
}

TEST(StoredFp8, RanksHaveTheValuesOfOne) {
  std::string why_not;
  if (!can_communicate(Device::kCpu, why_not)) GTEST_SKIP() << why_not;
  const auto read = [](TrainState& state) {
    ParamStore& store = state.store();
    HostTensors make;
    const std::vector<NamedTensor> expected = weights_read(state, make);
    store.begin_step();
    for (const StoredMatrix& one : store.weight_home().forms().matrices()) {
      const int64_t block = store.layout().places[one.place].info.block;
      if (block >= 0) {
        const auto lease = store.lease_block(static_cast<size_t>(block), LeaseFor::kBackward);
        expect_values_of_whole(one, expected[one.place].tensor);
      } else {
        const auto lease = store.lease_head(LeaseFor::kBackward);
        expect_values_of_whole(one, expected[one.place].tensor);
      }
    }
  };
  const auto compare = [&](const Ranks& ranks) {
    for (const auto& [name, make_shape] : kTrained) {
      SCOPED_TRACE(name);
      const RunShape shape = make_shape(shared_shape(ranks.size, Shard::kWeights));
      size_t count = 0;
      run_shared(ranks, {.shape = shape, .steps = 2, .before = set_outliers, .after = [&](TrainState& state) {
                           read(state);
                           count = static_cast<size_t>(std::ranges::count_if(
                               state.store().weight_home().forms().matrices(),
                               [](const StoredMatrix& one) { return one.how != StoredAs::kCopied; }));
                         }});
      // Three blocks, and a head that is not tied; two blocks with experts and a shared one
      const std::map<std::string_view, size_t> expected = {{"adapters", 12}, {"all", 13},
                                                           {"biases", 12},   {"gpt2", 0},
                                                           {"experts", 17},  {"adapters of experts", 17}};
      EXPECT_EQ(count, expected.at(name));
    }
  };
  for (const int count : {2, 3}) on_ranks(count, compare);
}

TEST(StoredFp8, ThePlanOfARankIsItsLedger) {
  std::string why_not;
  if (!can_communicate(Device::kCpu, why_not)) GTEST_SKIP() << why_not;
  on_ranks(2, [](const Ranks& ranks) {
    for (const auto& [name, make_shape] : kTrained)
      for (const bool on_host : {false, true}) {
        SCOPED_TRACE(name);
        const std::unique_ptr<Backend> be = make_cpu_backend();
        const std::unique_ptr<Communicator> comm = make_communicator(*be, ranks);
        RunShape shape = make_shape(shared_shape(2, Shard::kWeights));
        shape.offload.weights = on_host;
        expect_ledger_is_plan(*be, shape, {.all = comm.get()});
      }
  });
}

// What ranks send in a step: a byte a weight for each lease of a block in place of two
TEST(StoredFp8, HalvesWhatIsGathered) {
  const DeviceTraits gpu{.device = Device::kCuda, .arch = 90};
  const ModelConfig model =
      with_llama_parts({.vocab_size = 61, .context = 64, .layers = 12, .heads = 4, .channels = 256});
  RunShape shape{.model = model,
                 .micro_batch = 1,
                 .micro_steps = 4,
                 .sequence_length = 64,
                 .dtype = DType::kBF16,
                 .mesh = {.data = 8},
                 .shard = Shard::kWeights};
  const auto gathered = [&](bool fp8, bool adapters) {
    RunShape own = shape;
    if (fp8) own.fp8 = {.gemm_dtype = GemmDtype::kFp8, .edges = true};
    if (adapters) own.model = with_adapters(own.model, 4), own.freeze = Freeze::all_but_adapters();
    // Of the bytes that a step sends, those of its second micro-step: the first has the scales, too
    const auto sent = [&](int64_t micro_steps) {
      int64_t bytes = 0;
      const std::unique_ptr<Backend> be = make_plan_backend(gpu);
      Arena arena = Arena::plan(Device::kCuda);
      const auto comm =
          make_plan_communicator(Device::kCuda, 0, 8, {.start = [&](int64_t b) { bytes += b; }});
      TrainState state(*be, arena, own, {.all = comm.get()});
      state.walk_step(micro_steps);
      return bytes;
    };
    return sent(3) - sent(2);
  };
  // Two blocks stay in their buffers where the direction changes, at both ends.
  const double leases = 2 * 12 - 2 - 2,
               block = (4.0 * 256 + 3.0 * static_cast<double>(model.mlp_width)) * 256 * 7 / 8;
  for (const bool adapters : {false, true})
    EXPECT_NEAR(static_cast<double>(gathered(false, adapters) - gathered(true, adapters)), leases * block,
                0.05 * leases * block);
}

}  // namespace
}  // namespace tessera::testing
