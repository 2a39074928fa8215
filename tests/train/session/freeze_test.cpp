// train.freeze: what is frozen keeps its bits, what is trained gets the gradients that it would get anyway.
#include "tests/data_parallel.h"
#include "tests/model_variants.h"
#include "tests/tolerances.h"
#include "train/parallel/make_communicator.h"

namespace tessera::testing {
namespace {

std::string bytes_of(const Tensor& tensor) { return {tensor.as<char>(), tensor.bytes()}; }

Freeze frozen(std::initializer_list<ParamPart> parts, std::initializer_list<Freeze::Blocks> blocks = {}) {
  Freeze freeze;
  for (const ParamPart part : parts) freeze.add(part);
  for (const Freeze::Blocks& one : blocks) freeze.add(one);
  return freeze;
}

struct Steps {
  std::vector<std::string> first_gradients, before, after;  // by parameter; no gradient: ""
  double norm = 0;                                          // of the first step
};

Steps steps_of(const ModelConfig& model, const Freeze& freeze, int steps) {
  const RunShape shape{
      .model = model, .micro_batch = 2, .micro_steps = 2, .sequence_length = 8, .freeze = freeze};
  const std::unique_ptr<Backend> be = make_backend({.device = Device::kCpu});
  Arena arena = Arena::host();
  arena.reserve(plan_memory(shape, {.device = Device::kCpu}).peak_bytes());
  TrainState state(*be, arena, shape);
  state.initialize(3);
  Steps result;
  const auto all = [&](const Params& params) {
    std::vector<std::string> found;
    for_each_param(params, model,
                   [&](const ParamInfo&, const Tensor& t) { found.push_back(t ? bytes_of(t) : ""); });
    return found;
  };
  result.before = all(state.model().params);
  for (int i = 0; i < steps; ++i) {
    std::vector<int32_t> tokens, targets;
    for (int t = 0; t < 32; ++t) tokens.push_back(t * 7 % 13), targets.push_back((t * 7 + 3) % 13);
    state.step(tokens, targets, kTestOptimizer, 1e-2, i + 1);
    const double norm = state.finish_step().grad_norm;
    if (i > 0) continue;
    result.norm = norm;
    result.first_gradients = all(state.grads());
  }
  result.after = all(state.model().params);
  return result;
}

const std::vector<Freeze>& kinds() {
  static const std::vector<Freeze> all{
      frozen({ParamPart::kEmbeddings}),
      frozen({ParamPart::kNorms}),
      frozen({ParamPart::kAttention, ParamPart::kMlp}),
      frozen({ParamPart::kEmbeddings, ParamPart::kAttention, ParamPart::kMlp}),
      frozen({}, {{0, 0}}),
      frozen({ParamPart::kEmbeddings, ParamPart::kNorms}, {{0, 0}, {1, 1}}),
  };
  return all;
}

TEST(Freeze, WhatIsTrainedGetsTheSameGradientsAndWhatIsNotKeepsItsBits) {
  for (ModelConfig model : {kSharedModel, ModelConfig{.vocab_size = 61,
                                                      .context = 24,
                                                      .layers = 2,
                                                      .heads = 2,
                                                      .channels = 24,
                                                      .norm = NormKind::kRmsNorm,
                                                      .positions = Positions::kRope,
                                                      .mlp = Mlp::kSwiglu,
                                                      .bias = Bias::kNone,
                                                      .qk_norm = true,
                                                      .tied = false}}) {
    std::vector<Freeze> all = kinds();
    if (!model.tied) all.push_back(frozen({ParamPart::kHead}));
    const Steps plain = steps_of(model, {}, 1);
    const ParamLayout layout(model, 1);
    for (const Freeze& freeze : all) {
      SCOPED_TRACE(text_of(freeze));
      const Steps own = steps_of(model, freeze, 3);
      EXPECT_EQ(own.before, plain.before);
      double squares = 0;
      int64_t trained = 0;
      for (const ParamPlace& place : layout.places) {
        const size_t i = place.index;
        if (freeze.freezes(place.info)) {
          EXPECT_EQ(own.after[i], own.before[i]) << place.info.name;
          continue;
        }
        ++trained;
        EXPECT_NE(own.after[i], own.before[i]) << place.info.name;
        EXPECT_EQ(own.first_gradients[i], plain.first_gradients[i]) << place.info.name;
        const auto* values = reinterpret_cast<const float*>(plain.first_gradients[i].data());
        for (int64_t k = 0; k < place.info.shape.numel(); ++k)
          squares += static_cast<double>(values[k]) * static_cast<double>(values[k]);
      }
      EXPECT_GT(trained, 0);
      EXPECT_NEAR(own.norm, std::sqrt(squares), 1e-5 * own.norm);  // sums of squares in fp32
    }
  }
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
  // bf16 gradients; fp32 masters and two moments. Within the padding: 47 rows of the token table, and vectors
  EXPECT_NEAR(saved(MemoryTag::kGradients), 2 * frozen_elements, 2e5);
  EXPECT_NEAR(saved(MemoryTag::kOptimizer), 12 * frozen_elements, 6e5);
  EXPECT_EQ(saved(MemoryTag::kWeights), 0);
  EXPECT_LT(shape.flops_per_token(), shape.model.flops_per_token(1024));
}

void expect_the_losses_of_one(bool shard) {
  std::string why_not;
  if (!can_communicate(Device::kCpu, why_not)) GTEST_SKIP() << why_not;
  const auto shape = [&](int ranks) {
    RunShape own = shared_shape(ranks, shard);
    own.freeze = frozen({ParamPart::kEmbeddings, ParamPart::kNorms}, {{1, 1}});
    return own;
  };
  on_ranks(2, [&](const Ranks& ranks) {
    const std::vector<double> one = run_shared({}, {.shape = shape(1), .steps = 20});
    EXPECT_LT(one.back(), one.front()) << "nothing was learned";
    std::string weights;
    const std::vector<double> ours = run_shared(
        ranks,
        {.shape = shape(2), .steps = 20, .after = [&](TrainState& state) { weights = weight_bytes(state); }});
    EXPECT_LT(largest_difference(ours, one), tolerance::kLossesOfRanks);
    for (const std::string& theirs : ranks.exchange(weights)) EXPECT_TRUE(theirs == weights);
  });
}

TEST(Freeze, TwoRanksWithShardedOptimizer) { expect_the_losses_of_one(true); }
TEST(Freeze, TwoRanksWithWholeOptimizers) { expect_the_losses_of_one(false); }

}  // namespace
}  // namespace tessera::testing
