// Training a mixture of experts: the losses of its routers are those of the whole step, however it is cut;
// frozen routers; Muon; documents; what a forward counts.
#include <algorithm>

#include "model/muon.h"
#include "tests/data_parallel.h"
#include "tests/model_variants.h"
#include "tests/tolerances.h"

namespace tessera::testing {
namespace {

ModelConfig model_with_experts(const ModelConfig& plain = kSharedModel) {
  const std::vector<Variant> all = parts_of(plain);
  return std::ranges::find(all, "qwen3 with experts", &Variant::name)->model;
}

constexpr RouterLosses kBoth{.balance = 0.5, .z = 0.1};

RunShape shape_of(int64_t micro_batch, int64_t micro_steps, const RouterLosses& losses = kBoth) {
  return {.model = model_with_experts(),
          .micro_batch = micro_batch,
          .micro_steps = micro_steps,
          .sequence_length = 17,
          .router_losses = losses};
}

double largest_gradient_error(const StepsResult& a, const StepsResult& b) {
  double worst = 0;
  for (size_t i = 0; i < a.first_gradients.size(); ++i)
    worst = std::max(worst, relative_error(a.first_gradients[i].tensor, b.first_gradients[i].tensor));
  return worst;
}

TEST(Experts, LossesOfRoutersAreThoseOfTheStepInAnyMicroBatches) {
  for (const RouterLosses& losses : {kBoth, RouterLosses{.balance = 1}, RouterLosses{.z = 1}}) {
    HostTensors make;
    const StepsResult whole = run_steps({}, shape_of(8, 1, losses), 3, make);
    for (const int64_t micro_batch : {1, 2, 4}) {
      const StepsResult cut = run_steps({}, shape_of(micro_batch, 8 / micro_batch, losses), 3, make);
      EXPECT_LT(largest_gradient_error(cut, whole), 2e-5) << micro_batch;
      EXPECT_LT(largest_difference(cut.losses, whole.losses), 1e-5) << micro_batch;
    }
    // They do something, and a mean of micro-batches would be another loss.
    const StepsResult without = run_steps({}, shape_of(8, 1, {}), 1, make);
    EXPECT_GT(largest_gradient_error(without, whole), 1e-2);
  }
}

TEST(Experts, WhatIsRecomputedHasTheSameBitsWithTheirLosses) {
  for (const int64_t micro_batch : {8, 2}) {
    HostTensors make;
    RunShape shape = shape_of(micro_batch, 8 / micro_batch);
    const StepsResult kept = run_steps({}, shape, 3, make, 1e-2);
    for (const Keep keep : {kKeepAllButMlp, kKeepAttention, kKeepOutputs, Keep{Recomputed::kActivation}}) {
      shape.keep = keep;
      expect_same_bits(run_steps({}, shape, 3, make, 1e-2), kept);
      expect_plan_is_the_step({}, shape);
    }
  }
}

// As many ranks as there are, each with its part of the sequences
TEST(Experts, LossesOfRoutersAreThoseOfTheStepOnAnyRanks) {
  std::string why_not;
  if (!can_communicate(Device::kCpu, why_not)) GTEST_SKIP() << why_not;
  for (const Shard shard : {Shard::kOptimizer, Shard::kWeights})
    for (const bool one_micro_batch : {false, true})
      on_ranks(2, [&](const Ranks& ranks) {
        const auto shape_for = [&](int size) {
          RunShape shape = shared_shape(size, shard);
          shape.model = model_with_experts(), shape.router_losses = kBoth;
          if (one_micro_batch) std::swap(shape.micro_batch, shape.micro_steps);
          return shape;
        };
        const std::vector<double> one = run_shared({}, {.shape = shape_for(1), .steps = 10}),
                                  ours = run_shared(ranks, {.shape = shape_for(2), .steps = 10});
        EXPECT_LT(largest_difference({ours[0]}, {one[0]}), tolerance::kFirstLossOfRanks);
        EXPECT_LT(largest_difference(ours, one), tolerance::kLossesOfRanks);
      });
}

// What stands in padding changes nothing, and the same documents without it are the same step.
TEST(Experts, PaddingIsInNoLossOfRouters) {
  constexpr int64_t kDocument = 11, T = 17;
  HostTensors make;
  const auto gradients = [&](int64_t length, int32_t padding) {
    RunShape shape = shape_of(2, 2);
    shape.documents = true, shape.sequence_length = length;
    const std::unique_ptr<Backend> be = make_cpu_backend();
    Arena arena = Arena::host();
    TrainState state(*be, arena, shape);
    state.initialize(3);
    std::vector<int32_t> tokens, targets, documents;
    for (int32_t i = 0; i < 4 * length; ++i) {
      const int64_t t = i % length;
      const bool pads = t >= kDocument;
      tokens.push_back(pads ? padding : static_cast<int32_t>((i / length * 17 + t * t) % 61));
      targets.push_back(pads ? kNoTarget : static_cast<int32_t>((i / length + t * 5) % 61));
      documents.push_back(pads ? kDocument : 0);
      documents.push_back(static_cast<int32_t>(pads ? length : kDocument));
    }
    state.step({.tokens = tokens, .targets = targets, .documents = documents}, 4 * kDocument, kTestOptimizer,
               1e-3, 1);
    state.finish_step();
    StepsResult result;
    result.first_gradients = on_host(state.stream(), state.grads(), shape.model, make);
    return result;
  };
  const StepsResult zeros = gradients(T, 0);
  EXPECT_LT(largest_gradient_error(gradients(T, 7), zeros), 1e-5);
  EXPECT_LT(largest_gradient_error(gradients(kDocument, 0), zeros), 1e-5);
}

TEST(Experts, FrozenRoutersStayAndTheRestLearns) {
  RunShape shape = shape_of(4, 1);
  shape.freeze.add(ParamPart::kRouter);
  const std::unique_ptr<Backend> be = make_cpu_backend();
  Arena arena = Arena::host();
  TrainState state(*be, arena, shape);
  state.initialize(3);
  int64_t frozen = 0;
  for (const ParamPlace& place : state.store().layout().places) {
    const bool is_router = place.info.name.ends_with("experts.router.weight");
    EXPECT_EQ(place.trained, !is_router) << place.info.name;
    frozen += is_router;
  }
  EXPECT_EQ(frozen, shape.model.layers);
  HostTensors make;
  const StepsResult result = run_steps({}, shape, 10, make, 1e-2);
  EXPECT_LT(result.losses.back(), 1.05 * result.losses.front());
}

// A step that has no gradient yet leaves a matrix of zeros: so each expert's matrix is orthogonal by itself,
// and its step has the length that Muon gives it, where a step of all experts together would have another.
TEST(Experts, MuonTakesEachMatrixOfEachExpert) {
  RunShape shape = shape_of(8, 1, {});
  shape.rule = muon({});
  const std::unique_ptr<Backend> be = make_cpu_backend();
  Arena arena = Arena::host();
  TrainState state(*be, arena, shape);
  state.initialize(3);
  HostTensors make;
  const std::vector<NamedTensor> before = masters_on_host(state, make);
  const Tensor tokens = make.tokens({shape.tokens_per_step() + 1}, shape.model.vocab_size);
  const std::span<const int32_t> all(tokens.as<int32_t>(), static_cast<size_t>(tokens.numel()));
  OptimizerConfig optimizer = kTestOptimizer;
  optimizer.weight_decay = 0;
  state.step({.tokens = all.first(all.size() - 1), .targets = all.last(all.size() - 1)},
             shape.tokens_per_step(), optimizer, 1e-2, 1);
  state.finish_step();
  const std::vector<NamedTensor> after = masters_on_host(state, make);
  for (size_t i = 0; i < before.size(); ++i) {
    if (!before[i].name.ends_with("experts.expand.weight")) continue;
    const Shape& shape_of_all = before[i].tensor.shape;
    const int64_t each = shape_of_all[1] / 2 * shape_of_all[2];  // gate, or up, of an expert
    for (int64_t first = 0; first < before[i].tensor.numel(); first += each) {
      double squares = 0;
      for (int64_t j = first; j < first + each; ++j) {
        const auto at = static_cast<size_t>(j);
        squares += std::pow(floats(after[i].tensor)[at] - floats(before[i].tensor)[at], 2);
      }
      EXPECT_NEAR(std::sqrt(squares / static_cast<double>(each)), 0.2 * 1e-2, 0.1 * 0.2 * 1e-2)
          << before[i].name << ", matrix " << first / each;
    }
  }
}

}  // namespace
}  // namespace tessera::testing
