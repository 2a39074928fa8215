// Losses of pairs, packed, against those of TRL on padded rows; and that packing, micro-batches, ranks and
// adapters change nothing.
#include <nlohmann/json.hpp>

#include "model/preference_loss.h"
#include "tests/data_parallel.h"
#include "tests/documents.h"
#include "tests/preference_fp8.h"
#include "tests/reference_folder.h"
#include "tests/tolerances.h"
#include "train/session/pair_figures.h"

namespace tessera::testing {
namespace {

std::vector<PairOfTexts> pairs_of(const nlohmann::json& reference) {
  std::vector<PairOfTexts> pairs;
  for (const auto& pair : reference["pairs"])
    pairs.push_back({pair["prompt"], pair["chosen"], pair["rejected"]});
  return pairs;
}

PreferenceRule rule_of(const nlohmann::json& settings) {
  const std::string name = settings["rule"];
  return {.kind = name == "dpo"     ? PreferenceKind::kDpo
                  : name == "ipo"   ? PreferenceKind::kIpo
                  : name == "simpo" ? PreferenceKind::kSimpo
                  : name == "kto"   ? PreferenceKind::kKto
                                    : PreferenceKind::kOrpo,
          .beta = settings["beta"],
          .label_smoothing = settings.value("label_smoothing", 0.0),
          .gamma = settings.value("gamma", 0.0),
          .desirable = settings.value("desirable", 1.0),
          .undesirable = settings.value("undesirable", 1.0)};
}

struct Preferences : ::testing::TestWithParam<const char*> {
  std::filesystem::path folder = fixture("preference");
  nlohmann::json reference = nlohmann::json::parse(std::ifstream(folder / "reference.json"));
  std::vector<PairOfTexts> pairs = pairs_of(reference);
  nlohmann::json rule = reference["rules"][GetParam()];
  ModelConfig model = read_model_config(folder / "reference_model").model;

  struct Steps {
    std::vector<double> losses, grad_norms;
    std::vector<std::vector<double>> figures;
    std::vector<NamedTensor> first_gradients;
    double evaluated = 0;  // the loss before the first step, as an evaluation finds it
  };

  Steps steps(const Sequences& sequences, int64_t micro_batch, AttentionKind attention, HostTensors& make) {
    const int64_t count = std::ssize(sequences.tokens) / kPairTokens, all = std::ssize(pairs);
    const std::unique_ptr<Backend> be = make_cpu_backend();
    Arena arena = Arena::host();
    const LossRule loss = preference_loss(rule_of(rule));
    TrainState state(*be, arena,
                     {.model = model,
                      .micro_batch = micro_batch,
                      .micro_steps = count / micro_batch,
                      .sequence_length = kPairTokens,
                      .loss = loss,
                      .attention = attention,
                      .classifier_chunk = 11,
                      .documents = true,
                      .cuda_graphs = true});
    state.initialize(0);
    load_weights(folder / "reference_model", state);
    if (loss.needs_reference)
      load_weights(rule.value("other", false) ? fixture("families/llama") : folder / "reference_model",
                   state.reference());
    Steps found;
    const SequencesView first = SequencesView(sequences).tokens_from(0, micro_batch * kPairTokens);
    const std::vector<float> losses = state.session().losses(first, micro_batch, kPairTokens),
                             theirs = loss.needs_reference
                                          ? state.reference_losses(first, micro_batch, kPairTokens)
                                          : std::vector<float>();
    found.evaluated = pair_figures(*loss.pairs, pairs_in({.rule = *loss.pairs,
                                                          .sequences = first,
                                                          .T = kPairTokens,
                                                          .losses = losses,
                                                          .reference = theirs}))[0];
    const OptimizerConfig optimizer{.beta1 = reference["beta1"],
                                    .beta2 = reference["beta2"],
                                    .epsilon = reference["epsilon"],
                                    .weight_decay = reference["weight_decay"],
                                    .max_grad_norm = reference["max_grad_norm"]};
    for (int step = 1; step <= reference["steps"]; ++step) {
      state.step(sequences, all, optimizer, reference["learning_rate"], step);
      const TrainState::StepResult result = state.finish_step();
      found.losses.push_back(result.loss);
      found.grad_norms.push_back(result.grad_norm);
      found.figures.push_back(result.figures);
      if (step == 1) found.first_gradients = on_host(state.stream(), state.grads(), model, make);
    }
    return found;
  }
};

TEST_P(Preferences, AreThoseOfTrlForTenSteps) {
  const TensorFiles tensors(folder, "reference");
  const double all = static_cast<double>(pairs.size()), theirs = rule["in_fp32"]["gradients"];
  for (const bool one_by_one : {false, true})
    for (const bool large : {false, true}) {
      const bool labelled = rule["rule"] == "kto";
      const int64_t count = one_by_one ? 8 : 6, micro_batch = large ? count / (labelled ? 1 : 2) : 1;
      const Sequences sequences =
          packed_pairs(pairs, one_by_one ? 1 : 100, count, labelled ? Answers::kLabelled : Answers::kPairs);
      HostTensors make;
      const Steps found =
          steps(sequences, micro_batch, one_by_one ? AttentionKind::kNaive : AttentionKind::kFlash, make);
      std::string worst;
      const double gradients =
          worst_error(found.first_gradients, model, tensors, std::string(GetParam()) + ".gradient.", worst);
      double losses = 0, norms = 0, figures = 0;
      for (size_t i = 0; i < found.losses.size(); ++i) {
        const double loss = rule["losses"][i], norm = rule["grad_norms"][i];
        losses = std::max(losses, std::abs(found.losses[i] - loss));
        norms = std::max(norms, std::abs(found.grad_norms[i] / norm - 1));
        EXPECT_NEAR(found.figures[i][0] / all, found.losses[i], 1e-6);
        const std::vector<double> means = mean_figures(found.figures[i], pairs.size(), pairs.size());
        if (labelled) {
          EXPECT_NEAR(std::max(0.0, means[8]), rule["figures"][i][4], tolerance::kPairLosses);
        }
        for (size_t f = 0; f < 4; ++f) {
          const double wanted = rule["figures"][i][f], ours = means[1 + f];
          figures = std::max(figures, std::abs(ours - wanted) / std::max(1.0, std::abs(wanted)));
        }
      }
      const std::string what = fmt::format("{}, {}, micro-batches of {}", GetParam(),
                                           one_by_one ? "a pair in a sequence" : "packed", micro_batch);
      fmt::print(
          "[ measured ] {}: losses {:.1e}, norms {:.1e}, figures {:.1e}, gradients {:.1e} ({}), TRL's in "
          "fp32 {:.1e}\n",
          what, losses, norms, figures, gradients, worst, theirs);
      EXPECT_LT(losses, tolerance::kPairLosses) << what;
      EXPECT_LT(norms, tolerance::kCpuAgainstPyTorch) << what;
      EXPECT_LT(figures, tolerance::kPairLosses) << what;
      EXPECT_LT(gradients, tolerance::kPairGradients * theirs) << what << ": " << worst;
    }
}

TEST_P(Preferences, StartAtLogarithmOfTwoWhereTheReferenceIsTheModel) {
  if (rule["rule"] != "dpo" || rule.contains("other")) GTEST_SKIP() << "another loss";
  HostTensors make;
  const Steps found = steps(packed_pairs(pairs, 100, 6), 6, AttentionKind::kFlash, make);
  EXPECT_NEAR(found.losses[0], std::log(2.0), 1e-7);
  EXPECT_NEAR(found.evaluated / static_cast<double>(pairs.size()), std::log(2.0), 1e-7);
}

INSTANTIATE_TEST_SUITE_P(All, Preferences,
                         ::testing::Values("dpo", "robust", "ipo", "simpo", "orpo", "kto", "other"),
                         [](const auto& name) { return std::string(name.param); });

RunShape pair_shape(int ranks, int64_t micro_batch, Shard shard = Shard::kOptimizer,
                    PreferenceKind kind = PreferenceKind::kDpo) {
  ModelConfig model = kSharedModel;
  model.context = kPairTokens;
  return {.model = model,
          .micro_batch = micro_batch,
          .micro_steps = 8 / micro_batch / ranks,
          .sequence_length = kPairTokens,
          .loss = preference_loss({.kind = kind, .beta = 0.5}),
          .documents = true,
          .mesh = {.data = ranks},
          .shard = shard};
}

// Mean losses of steps over 8 sequences; the last ones are padding, so that ranks have unequal shares
std::vector<double> run_pairs(const Ranks& ranks, const RunShape& shape) {
  const std::vector<PairOfTexts> pairs = random_pairs(11);
  const Sequences all =
      packed_pairs(pairs, 100, 8, shape.loss.pairs->has_labels() ? Answers::kLabelled : Answers::kPairs);
  const std::unique_ptr<Backend> be = make_backend({});
  const Mesh mesh(*be, shape.mesh, ranks);
  Arena arena = make_arena({});
  const int64_t planned = plan_memory(shape, {}).peak_bytes();
  arena.reserve(planned);
  TrainState state(*be, arena, shape, mesh.step_axes());
  state.initialize(3);
  if (state.has_reference()) state.reference().initialize(4);
  const int64_t mine = shape.sequences_per_rank() * kPairTokens;
  const int64_t of_data = shape.mesh.place(Axis::kData, ranks.rank).rank;
  const SequencesView own = SequencesView(all).tokens_from(of_data * mine, mine);
  std::vector<double> losses;
  for (int step = 1; step <= 6; ++step) {
    state.step(own, std::ssize(pairs), kTestOptimizer, kSharedRate, step);
    const double loss = state.finish_step().loss;
    double sum = ranks.size == 1 ? loss : 0;
    if (ranks.size > 1)
      for (const std::string& text : ranks.exchange({reinterpret_cast<const char*>(&loss), sizeof loss})) {
        double theirs = 0;
        std::memcpy(&theirs, text.data(), sizeof theirs);
        sum += theirs;
      }
    losses.push_back(sum / ranks.size);
  }
  EXPECT_LE(arena.ledger().peak_bytes(), planned);
  return losses;
}

TEST(PreferenceSteps, OneTimesEightIsEightTimesOne) {
  for (const PreferenceKind kind : {PreferenceKind::kDpo, PreferenceKind::kKto}) {
    const auto shape_of = [&](int64_t micro_batch) {
      return pair_shape(1, micro_batch, Shard::kOptimizer, kind);
    };
    const std::vector<double> small = run_pairs({}, shape_of(1)), large = run_pairs({}, shape_of(8));
    EXPECT_LT(small.back(), small.front());
    EXPECT_LT(largest_difference(small, large), tolerance::kLossesOfRanks);
    for (const bool fused : {false, true}) {
      RunShape shape = shape_of(2);
      shape.fused_head = fused;
      EXPECT_LT(largest_difference(run_pairs({}, shape), large), tolerance::kLossesOfRanks);
    }
  }
}

RunShape with_adapters(RunShape shape) {
  shape.model.lora = {.rank = 4, .alpha = 8};
  shape.freeze = Freeze::all_but_adapters();
  shape.reference_without_adapters = true;
  return shape;
}

// The divergence that kto subtracts is a mean over the pairs of all ranks.
TEST(PreferenceSteps, RanksShareTheDivergenceOfAnswersWithLabels) {
  std::string why_not;
  if (!can_communicate(Device::kCpu, why_not)) GTEST_SKIP() << why_not;
  const auto shape_of = [](int ranks, int64_t micro_batch, Shard shard) {
    return pair_shape(ranks, micro_batch, shard, PreferenceKind::kKto);
  };
  for (const Shard shard : kAllShards)
    on_ranks(2, [&](const Ranks& ranks) {
      const std::vector<double> one = run_pairs({}, shape_of(1, 2, Shard::kOptimizer));
      for (const int64_t micro_batch : {2, 4})  // two micro-batches of each rank, and one
        EXPECT_LT(largest_difference(run_pairs(ranks, shape_of(2, micro_batch, shard)), one),
                  tolerance::kLossesOfRanks);
    });
}

TEST(PreferenceSteps, TwoRanksWithUnequalPairsHaveTheLossesOfOne) {
  std::string why_not;
  if (!can_communicate(Device::kCpu, why_not)) GTEST_SKIP() << why_not;
  for (const Shard shard : kAllShards)
    on_ranks(2, [&](const Ranks& ranks) {
      const RunShape one = pair_shape(1, 2), two = pair_shape(2, 2, shard);
      EXPECT_LT(largest_difference(run_pairs(ranks, two), run_pairs({}, one)), tolerance::kLossesOfRanks);
      EXPECT_LT(largest_difference(run_pairs(ranks, with_adapters(two)), run_pairs({}, with_adapters(one))),
                tolerance::kLossesOfRanks);
    });
}

// With adapters, the reference is the model without them: with weights in turn as well.
TEST(PreferenceSteps, AdaptersAreComparedWithTheModelWithoutThem) {
  std::vector<std::vector<double>> runs;
  for (const bool own : {true, false}) {
    RunShape shape = with_adapters(pair_shape(1, 2));
    shape.reference_without_adapters = own;
    const Sequences all = packed_pairs(random_pairs(11), 100, 8);
    const std::unique_ptr<Backend> be = make_backend({});
    Arena arena = make_arena({});
    TrainState state(*be, arena, shape);
    state.initialize(3);
    if (state.has_reference()) state.reference().initialize(3);  // the same weights
    std::vector<double>& losses = runs.emplace_back();
    for (int step = 1; step <= 6; ++step) {
      state.step(all, 11, kTestOptimizer, 1e-2, step);
      losses.push_back(state.finish_step().loss);
    }
    EXPECT_NEAR(losses[0], std::log(2.0), 1e-7);
    EXPECT_LT(losses.back(), 0.99 * losses.front());
  }
  EXPECT_EQ(runs[0], runs[1]);
}

TEST(PairsInFp8, BeginAtTheLogarithmOfTwo) { expect_pairs_in_fp8_begin_at_logarithm_of_two({}, 1e-7); }

TEST(PairsInFp8, ThePlanIsTheLedger) {
  for (const PairsIn8 of : kPairsIn8)
    for (const bool has_labels : {false, true}) {
      RunShape shape = pairs_in_fp8(of, models_of_pairs()[1], {.edges = true, .head = true});
      if (has_labels) shape.loss = preference_loss({.kind = PreferenceKind::kKto});
      shape.sample_tokens = kNoSamples;
      const MemoryLedger plan = plan_memory(shape, {});
      const std::unique_ptr<Backend> be = make_backend({});
      Arena arena = make_arena({});
      arena.reserve(plan.peak_bytes());
      const int64_t reserved = arena.reserved_bytes();
      TrainState state(*be, arena, shape);
      state.initialize(3);
      if (state.has_reference()) state.reference().initialize(3);
      const Sequences all =
          packed_pairs(random_pairs(11), 100, 8, has_labels ? Answers::kLabelled : Answers::kPairs);
      state.step(all, 11, kTestOptimizer, 1e-3, 1);
      state.finish_step();
      const SequencesView batch = SequencesView(all).tokens_from(0, shape.micro_batch * kPairTokens);
      state.session().evaluate(batch, shape.micro_batch);
      state.reference_losses(batch, shape.micro_batch, kPairTokens);
      for (const std::string& name : state.store().kept().names())
        for (size_t b = 0; b < state.store().layout().buckets.size(); ++b)
          state.store().with_whole(name, b, [](const ParamReader&) {});
      EXPECT_EQ(arena.ledger().peak_bytes(), plan.peak_bytes());
      EXPECT_EQ(arena.ledger().peak_of_each(), plan.peak_of_each());
      EXPECT_EQ(arena.reserved_bytes(), reserved);
    }
}

// A reference of all weights has them in FP8 beside bf16, for evaluations, and without a transposed copy; one
// beside adapters has only FP8.
TEST(PairsInFp8, AReferenceHasNoTransposedCopies) {
  ModelConfig model = models_of_pairs(256)[1];
  model.layers = 8, model.vocab_size = 128;  // without padding
  const auto weights = [&](PairsIn8 of, bool reference) {
    RunShape shape = pairs_in_fp8(of, model, {.edges = true}, DType::kBF16);
    shape.loss.needs_reference = reference, shape.loss.stored_reference = !reference;
    return plan_memory(shape, {.device = Device::kCuda, .arch = 90})
        .peak_of_each()[static_cast<int>(MemoryTag::kWeights)];
  };
  const int64_t in_fp8 = 8 * (256 * model.qkv_heads() * 128 + 256 * 256 + 3 * 256 * model.mlp_width),
                others = model.parameters() - in_fp8, slack = 5 * 4096;
  const auto taken = [&](PairsIn8 of) { return static_cast<double>(weights(of, true) - weights(of, false)); };
  EXPECT_NEAR(taken(PairsIn8::kAll), static_cast<double>(2 * others + 3 * in_fp8), slack);
  EXPECT_NEAR(taken(PairsIn8::kAdaptersOverItsOwnReference),
              static_cast<double>(2 * others + in_fp8 + 2 * in_fp8 / 8), slack);
  EXPECT_EQ(taken(PairsIn8::kAdapters), 0);
}

// Scales follow from the largest elements of all ranks, so how weights are split changes no bit, and how the
// pairs are dealt only the order of sums, which a rounding to FP8 makes larger.
TEST(PairsInFp8, RanksHaveTheLossesOfOne) {
  std::string why_not;
  if (!can_communicate(Device::kCpu, why_not)) GTEST_SKIP() << why_not;
  for (const PairsIn8 of : kPairsIn8)
    on_ranks(2, [&](const Ranks& ranks) {
      RunShape shape = pairs_in_fp8(of, models_of_pairs()[1], {.edges = true});
      const std::vector<double> one = run_pairs({}, shape);
      shape.micro_steps = 1, shape.mesh.data = 2;  // one, so that gradients have the same sums
      const std::vector<double> whole = run_pairs(ranks, shape);
      EXPECT_LT(largest_difference(whole, one), tolerance::kFp8ModelLoss * one.front());
      shape.shard = Shard::kWeights;
      EXPECT_EQ(run_pairs(ranks, shape), whole);
      shape.offload.weights = true;
      EXPECT_EQ(run_pairs(ranks, shape), whole);
      shape.offload = {}, shape.shard = Shard::kOptimizer;
      shape.mesh = {.data = 1, .context = 2}, shape.micro_steps = 2;
      EXPECT_LT(largest_difference(run_pairs(ranks, shape), one), tolerance::kFp8ModelLoss * one.front());
    });
}

// What recomputes the hidden layer of MLPs in parts has room for an operand of that many rows.
TEST(PairsInFp8, PartsOfMlpsAndLogitsChangeTheLossByRoundings) {
  for (const PairsIn8 of : kPairsIn8) {
    RunShape shape = pairs_in_fp8(of, models_of_pairs()[1], {.edges = true, .head = true});
    const std::vector<double> whole = steps_of_pairs({}, shape, 1e-2).losses;
    shape.mlp_chunk = 16, shape.classifier_chunk = 48;
    EXPECT_LT(largest_difference(steps_of_pairs({}, shape, 1e-2).losses, whole),
              tolerance::kFp8ModelLoss * whole.front());
  }
}

}  // namespace
}  // namespace tessera::testing
