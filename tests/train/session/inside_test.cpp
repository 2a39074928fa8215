// What goes on inside a step, as train.inside_every has it: the norms are those of the step, on any ranks,
// and the step has the bits that it has without them.
#include "tests/frozen_steps.h"
#include "tests/inside_steps.h"
#include "tests/model_families.h"
#include "tests/tolerances.h"

namespace tessera::testing {
namespace {

double weight_norm_of(const InsideFigures& figures, const std::string& name, size_t layer) {
  for (const InsideFigures::Part& part : figures.parts)
    if (part.name == name) return part.layers.at(layer).weight;
  ADD_FAILURE() << "no part " << name;
  return NAN;
}

TEST(Inside, PartsAreNamedByTheirParameters) {
  const auto name = [](const char* of, int64_t block, ParamPart part) {
    return part_of({.name = of, .shape = {1}, .init = Init::kZero, .block = block, .part = part});
  };
  EXPECT_EQ(name("blocks.11.attention.qkv.weight", 11, ParamPart::kAttention), "attention.qkv");
  EXPECT_EQ(name("blocks.0.mlp.expand.bias", 0, ParamPart::kMlp), "mlp.expand");
  EXPECT_EQ(name("blocks.3.norm1.weight", 3, ParamPart::kNorms), "norms");
  EXPECT_EQ(name("blocks.3.attention.q_norm.weight", 3, ParamPart::kNorms), "norms");
  EXPECT_EQ(name("blocks.3.attention.out.lora_b", 3, ParamPart::kAttention), "attention.out.lora_b");
  EXPECT_EQ(name("norm.weight", -1, ParamPart::kNorms), "norm");
  EXPECT_EQ(name("token_table", -1, ParamPart::kEmbeddings), "token_table");
  EXPECT_EQ(name("head.weight", -1, ParamPart::kHead), "head");
}

// Against the masters before and after a step, and its gradients
TEST(Inside, NormsAreThoseOfTheStep) {
  const ModelConfig qwen3 =
      with_qwen3_parts({.vocab_size = 61, .context = 24, .layers = 2, .heads = 2, .channels = 24});
  const std::pair<ModelConfig, UpdateRule> cases[] = {
      {kSharedModel, adamw()}, {qwen3, adamw()}, {kSharedModel, muon({})}, {qwen3, muon({.variance = true})}};
  for (const auto& [model, rule] : cases) {
    SCOPED_TRACE(rule.name);
    RunShape shape = shared_shape(1);
    shape.model = model, shape.rule = rule, shape.inside_every = 2;
    HostTensors make;
    std::vector<NamedTensor> before, after, gradients;
    double norm = 0;
    std::optional<InsideFigures> inside;
    run_shared({}, {.shape = shape, .steps = 1, .after = [&](TrainState& state) {
                      EXPECT_FALSE(state.inside()) << "step 1 is not one of every two";
                      before = masters_on_host(state, make);
                    }});
    run_shared({}, {.shape = shape, .steps = 2, .after = [&](TrainState& state) {
                      inside = state.inside();
                      norm = state.finish_step().grad_norm;
                      after = masters_on_host(state, make);
                      gradients = on_host(state.stream(), state.grads(), model, make);
                    }});
    ASSERT_TRUE(inside);
    if (model == kSharedModel) {
      EXPECT_GT(norm, kTestOptimizer.max_grad_norm) << "the step should clip";
    }
    const double clip = std::min(1.0, kTestOptimizer.max_grad_norm / norm);
    std::map<std::string, std::array<double, 3>> expected;  // squares, by part and block
    const auto key = [](const std::string& part, int64_t block) { return fmt::format("{} {}", part, block); };
    size_t i = 0;
    const Params none = [&] {
      Params params;
      params.blocks.resize(static_cast<size_t>(model.layers));
      return params;
    }();
    for_each_param(none, model, [&](const ParamInfo& info, const Tensor&) {
      auto& squares = expected[key(part_of(info), info.block)];
      for (size_t e = 0; e < floats(before[i].tensor).size(); ++e) {
        const double w = floats(before[i].tensor)[e], g = clip * floats(gradients[i].tensor)[e],
                     u = floats(after[i].tensor)[e] - floats(before[i].tensor)[e];
        squares[0] += w * w, squares[1] += g * g, squares[2] += u * u;
      }
      ++i;
    });
    size_t seen = 0;
    for (const InsideFigures::Part& part : inside->parts)
      for (size_t l = 0; l < part.layers.size(); ++l, ++seen) {
        const bool outside = part.layers.size() == 1;
        SCOPED_TRACE(key(part.name, outside ? -1 : static_cast<int64_t>(l)));
        const auto& squares = expected.at(key(part.name, outside ? -1 : static_cast<int64_t>(l)));
        const InsideFigures::Norms& norms = part.layers[l];
        for (const auto& [found, square] :
             {std::pair{norms.weight, squares[0]}, std::pair{norms.gradient, squares[1]},
              std::pair{norms.update, squares[2]}})
          EXPECT_NEAR(found, std::sqrt(square), tolerance::kCpuOperation * std::sqrt(square));
      }
    EXPECT_EQ(seen, expected.size());
  }
}

TEST(Inside, ChangesNoBitOfTheTraining) {
  RunShape shape = shared_shape(1);
  shape.cuda_graphs = true;
  const InsideSteps without = observe_inside({}, shape, 4);
  EXPECT_FALSE(without.figures);
  for (const int64_t every : {1, 2}) {
    shape.inside_every = every;
    const InsideSteps with = observe_inside({}, shape, 4);
    EXPECT_TRUE(with.figures);
    EXPECT_EQ(with.losses, without.losses);
    EXPECT_TRUE(with.weights == without.weights);
  }
}

TEST(Inside, ThePlanIsTheStep) {
  for (const int64_t every : {1, 3}) {
    RunShape shape = shared_shape(1);
    shape.inside_every = every;
    expect_plan_is_the_step({.device = Device::kCpu}, shape);
  }
}

TEST(Inside, OffloadedAndInRam) {
  RunShape shape = shared_shape(1);
  shape.inside_every = 2;
  const InsideSteps there = observe_inside({}, shape);
  ASSERT_TRUE(there.figures);
  for (const Offload& offload :
       {Offload{.optimizer = true}, Offload{.weights = true}, Offload{.gradients = true},
        Offload{.optimizer = true, .weights = true, .gradients = true}}) {
    shape.offload = offload, shape.poison = Poison::kYes;
    const InsideSteps here = observe_inside({}, shape);
    ASSERT_TRUE(here.figures);
    expect_near_norms(here.figures->parts, there.figures->parts, 0);
  }
}

TEST(Inside, WhatIsFrozenIsAbsent) {
  RunShape shape = shared_shape(1);
  shape.inside_every = 2;
  shape.freeze = frozen({ParamPart::kEmbeddings, ParamPart::kNorms}, {{1, 1}});
  const InsideSteps found = observe_inside({}, shape);
  ASSERT_TRUE(found.figures);
  EXPECT_EQ(part_names(found.figures->parts),
            (std::vector<std::string>{"attention.qkv", "attention.out", "mlp.expand", "mlp.contract"}));
  EXPECT_GT(weight_norm_of(*found.figures, "mlp.expand", 0), 0);
  EXPECT_TRUE(std::isnan(weight_norm_of(*found.figures, "mlp.expand", 1))) << "a frozen block";
  EXPECT_GT(weight_norm_of(*found.figures, "mlp.expand", 2), 0);
}

void expect_two_parts_of_adapters(const UpdateRule& rule) {
  RunShape shape = shared_shape(1);
  shape.inside_every = 1, shape.rule = rule;
  shape.model.lora = {.rank = 4};
  shape.freeze = Freeze::all_but_adapters();
  const InsideSteps found = observe_inside({}, shape, 1);
  ASSERT_TRUE(found.figures);
  const InsideParts& parts = found.figures->parts;
  EXPECT_EQ(part_names(parts),
            (std::vector<std::string>{"attention.qkv.lora_a", "attention.qkv.lora_b", "attention.out.lora_a",
                                      "attention.out.lora_b", "mlp.expand.lora_a", "mlp.expand.lora_b",
                                      "mlp.contract.lora_a", "mlp.contract.lora_b"}));
  EXPECT_GT(parts[0].layers[0].weight, 0);
  EXPECT_EQ(parts[1].layers[0].weight, 0) << "B begins at zero";
  EXPECT_GT(parts[1].layers[0].update, 0);
}
TEST(Inside, AdaptersAreTwoPartsEach) {
  for (const UpdateRule& rule : {adamw(), muon({})}) expect_two_parts_of_adapters(rule);
}

void expect_the_figures_of_one(int size, Shard shard, const UpdateRule& rule = adamw()) {
  std::string why_not;
  if (!can_communicate(Device::kCpu, why_not)) GTEST_SKIP() << why_not;
  on_ranks(size, [&](const Ranks& ranks) {
    RunShape alone = shared_shape(1), shape = shared_shape(size, shard);
    alone.inside_every = shape.inside_every = 3;
    alone.rule = shape.rule = rule;
    const InsideSteps one = observe_inside({}, alone, 3), ours = observe_inside(ranks, shape, 3);
    ASSERT_TRUE(ours.figures);
    expect_near_norms(ours.figures->parts, one.figures->parts, tolerance::kLossesOfRanks);
  });
}
TEST(Inside, TwoRanksHaveTheNormsOfOne) {
  for (const Shard shard : kAllShards) expect_the_figures_of_one(2, shard);
}
TEST(Inside, ThreeRanksHaveTheNormsOfOne) {
  for (const Shard shard : {Shard::kOptimizer, Shard::kWeights})
    for (const UpdateRule& rule : {adamw(), muon({})}) expect_the_figures_of_one(3, shard, rule);
}

void expect_same_sample(const InsideFigures& a, const InsideFigures& b) {
  EXPECT_EQ(a.largest_scores, b.largest_scores);
  EXPECT_EQ(a.attention_entropy, b.attention_entropy);
  EXPECT_EQ(a.dead_units, b.dead_units);
}

void expect_close_scores(const InsideFigures& a, const InsideFigures& b, double tolerance) {
  ASSERT_EQ(a.largest_scores.size(), b.largest_scores.size());
  for (size_t layer = 0; layer < b.largest_scores.size(); ++layer)
    for (size_t head = 0; head < b.largest_scores[layer].size(); ++head)
      EXPECT_NEAR(a.largest_scores[layer].at(head), b.largest_scores[layer][head], tolerance)
          << "layer " << layer << ", head " << head;
}

// From other roundings in the blocks below
void expect_close_sample(const InsideFigures& a, const InsideFigures& b) {
  expect_close_scores(a, b, tolerance::kCpuAgainstPyTorch);
  for (size_t layer = 0; layer < b.attention_entropy.size(); ++layer)
    EXPECT_NEAR(a.attention_entropy[layer], b.attention_entropy[layer], tolerance::kCpuAgainstPyTorch);
  EXPECT_EQ(a.dead_units, b.dead_units);
}

// Of the first micro-batch, one sequence of 17 tokens; however the rest of the step is done
TEST(Inside, TheSampleIsThatOfTheFirstForward) {
  RunShape shape = shared_shape(1);
  shape.inside_every = 1;
  const auto figures_of = [](const RunShape& of, int steps = 1) {
    const InsideSteps found = observe_inside({}, of, steps);
    EXPECT_TRUE(found.figures);
    return found.figures.value();
  };
  const InsideFigures plain = figures_of(shape);
  ASSERT_EQ(plain.largest_scores.size(), 3u);
  for (size_t layer = 0; layer < 3; ++layer) {
    EXPECT_GT(plain.attention_entropy[layer], 1) << "close to even at first";
    EXPECT_LT(plain.attention_entropy[layer], std::log(17));
    ASSERT_EQ(plain.largest_scores[layer].size(), 2u);
    for (const double score : plain.largest_scores[layer]) EXPECT_GT(score, 0);
    EXPECT_EQ(plain.dead_units[layer], 0);
  }
  RunShape graphs = shape, recomputed = shape, chunks = shape, offloaded = shape, naive = shape;
  recomputed.keep = ByBlock<Keep>(Keep{Recomputed::kBlock});
  expect_same_sample(figures_of(recomputed), plain);
  chunks.mlp_chunk = 5;
  expect_close_sample(figures_of(chunks), plain);
  offloaded.offload = {.activations = true}, offloaded.poison = Poison::kYes;
  expect_same_sample(figures_of(offloaded), plain);
  naive.attention = AttentionKind::kNaive;
  expect_close_sample(figures_of(naive), plain);
  // A micro-step that is probed has a graph of its own.
  graphs.cuda_graphs = true;
  for (const int64_t every : {1, 2}) {
    graphs.inside_every = every;
    expect_same_sample(figures_of(graphs, 6), figures_of(shape, 6));
  }
}

// Units whose bias keeps them below 0 are dead.
TEST(Inside, CountsDeadUnits) {
  constexpr int64_t kDead = 5;
  RunShape shape = shared_shape(1);
  shape.inside_every = 1, shape.model.mlp = Mlp::kRelu;
  std::optional<InsideFigures> inside;
  run_shared({}, {.shape = shape,
                  .before =
                      [&](TrainState& state) {
                        HostTensors make;
                        for (const ParamPlace& place : state.store().layout().places) {
                          if (place.info.name != "blocks.1.mlp.expand.bias") continue;
                          const Tensor bias = make.zeros(place.info.shape);
                          std::fill_n(bias.as<float>(), kDead, -100.0f);
                          state.store().writer()(place, bias);
                        }
                      },
                  .after = [&](TrainState& state) { inside = state.inside(); }});
  ASSERT_TRUE(inside);
  EXPECT_EQ(inside->dead_units[1], static_cast<double>(kDead) / static_cast<double>(shape.model.mlp_width));
  EXPECT_EQ(inside->dead_units[2], 0);
}

// Of the first micro-batch, 17 tokens that choose 2 of 5 experts each
TEST(Inside, HasWhatRoutersDo) {
  RunShape shape = shared_shape(1);
  shape.inside_every = 1, shape.model.mlp = Mlp::kSwiglu, shape.model.mlp_width = 40;
  shape.model.experts = {.count = 5, .active = 2, .width = 16, .dense_layers = {1}};
  const auto figures_of = [](const RunShape& of) {
    const InsideSteps found = observe_inside({}, of, 1);
    EXPECT_TRUE(found.figures);
    return found.figures.value();
  };
  const InsideFigures plain = figures_of(shape);
  ASSERT_EQ(plain.expert_load.size(), 3u);
  EXPECT_TRUE(plain.expert_load[1].empty()) << "a block with one MLP";
  EXPECT_TRUE(std::isnan(plain.router_entropy[1]) && std::isnan(plain.dead_experts[1]));
  for (const size_t layer : {0, 2}) {
    const std::vector<double>& loads = plain.expert_load[layer];
    ASSERT_EQ(loads.size(), 5u);
    double choices = 0;
    for (const double load : loads) {
      const double rows = load * 17 * 2 / 5;
      EXPECT_NEAR(rows, std::round(rows), 1e-5) << "a number of tokens";
      EXPECT_LE(rows, 17 + 1e-5) << "a token chooses an expert once";
      choices += rows;
    }
    EXPECT_NEAR(choices, 17 * 2, 1e-4);
    EXPECT_EQ(plain.dead_experts[layer], static_cast<double>(std::ranges::count(loads, 0.0)) / 5);
    EXPECT_GT(plain.router_entropy[layer], 1) << "close to even at first";
    EXPECT_LE(plain.router_entropy[layer], std::log(5) + 1e-6);
  }
  shape.keep = ByBlock<Keep>(Keep{Recomputed::kBlock});
  const InsideFigures recomputed = figures_of(shape);
  EXPECT_EQ(recomputed.expert_load, plain.expert_load);
  EXPECT_EQ(recomputed.router_entropy[2], plain.router_entropy[2]);
}

// Routers of weights 0 choose the first experts, the others are dead.
TEST(Inside, CountsDeadExperts) {
  RunShape shape = shared_shape(1);
  shape.inside_every = 1, shape.model.mlp = Mlp::kSwiglu;
  shape.model.experts = {.count = 5, .active = 2, .width = 16};
  std::optional<InsideFigures> inside;
  run_shared({}, {.shape = shape,
                  .before =
                      [&](TrainState& state) {
                        HostTensors make;
                        for (const ParamPlace& place : state.store().layout().places)
                          if (place.info.name == "blocks.1.experts.router.weight")
                            state.store().writer()(place, make.zeros(place.info.shape));
                      },
                  .after = [&](TrainState& state) { inside = state.inside(); }});
  ASSERT_TRUE(inside);
  EXPECT_EQ(inside->expert_load[1], (std::vector<double>{2.5, 2.5, 0, 0, 0}));
  EXPECT_DOUBLE_EQ(inside->dead_experts[1], 3.0 / 5);
  EXPECT_NEAR(inside->router_entropy[1], std::log(5), 1e-6);
}

// However the tokens of a step are shared out, among micro-batches or ranks
TEST(Inside, LargestScoresAreOfAllTokens) {
  std::string why_not;
  if (!can_communicate(Device::kCpu, why_not)) GTEST_SKIP() << why_not;
  RunShape alone = shared_shape(1), whole = alone;
  alone.inside_every = whole.inside_every = 2;
  alone.cuda_graphs = true;  // observed micro-steps have graphs of their own
  whole.micro_batch = alone.sequences_per_rank(), whole.micro_steps = 1;
  const InsideSteps one = observe_inside({}, alone, 4), at_once = observe_inside({}, whole, 4);
  ASSERT_TRUE(one.figures && at_once.figures);
  expect_close_scores(*one.figures, *at_once.figures, tolerance::kLossesOfRanks);
  on_ranks(2, [&](const Ranks& ranks) {
    for (const bool context : {false, true}) {
      RunShape shape = shared_shape(2);
      shape.inside_every = 2;
      if (context) shape.mesh = {.data = 1, .context = 2}, shape.micro_steps = alone.micro_steps;
      const InsideSteps ours = observe_inside(ranks, shape, 4);
      ASSERT_TRUE(ours.figures);
      expect_close_scores(*ours.figures, *at_once.figures, tolerance::kLossesOfRanks);
      expect_near_norms(ours.figures->parts, one.figures->parts, tolerance::kLossesOfRanks);
    }
  });
}

}  // namespace
}  // namespace tessera::testing
