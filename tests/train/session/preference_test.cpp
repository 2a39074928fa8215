// Losses of pairs, packed, against those of TRL on padded rows; and that packing, micro-batches, ranks and
// adapters change nothing.
#include <nlohmann/json.hpp>

#include "model/preference_loss.h"
#include "tests/data_parallel.h"
#include "tests/documents.h"
#include "tests/reference_folder.h"
#include "tests/tolerances.h"
#include "train/session/pair_figures.h"

namespace tessera::testing {
namespace {

constexpr int64_t kPairTokens = 32;  // of a packed sequence

struct PairOfTexts {
  std::vector<int32_t> prompt, chosen, rejected;
};

std::vector<PairOfTexts> pairs_of(const nlohmann::json& reference) {
  std::vector<PairOfTexts> pairs;
  for (const auto& pair : reference["pairs"])
    pairs.push_back({pair["prompt"], pair["chosen"], pair["rejected"]});
  return pairs;
}

// Answers with labels, each with the answer of the pair before as its mismatched one: those of TRL's fixture
enum class Answers : uint8_t { kPairs, kLabelled };

// Pairs in their order, as many in a sequence as fit, or `most`; and padded sequences up to `count`
Sequences packed_pairs(const std::vector<PairOfTexts>& pairs, size_t most, int64_t count,
                       Answers answers = Answers::kPairs) {
  Sequences out;
  DocumentLengths lengths;
  int64_t room = 0;
  size_t in_row = 0;
  const auto pad = [&] {
    if (room > 0 && !lengths.empty()) lengths.back().push_back(room);
    out.tokens.insert(out.tokens.end(), static_cast<size_t>(room), 0);
    out.targets.insert(out.targets.end(), static_cast<size_t>(room), kNoTarget);
    out.kinds.insert(out.kinds.end(), static_cast<size_t>(room), 0);
  };
  const auto begin_row = [&] {
    pad();
    lengths.emplace_back();
    room = kPairTokens, in_row = 0;
  };
  const auto add = [&](const PairOfTexts& pair, const std::vector<int32_t>& answer, DocumentKind kind) {
    std::vector<int32_t> all = pair.prompt;
    all.insert(all.end(), answer.begin(), answer.end());
    const int64_t inputs = std::ssize(all) - 1;
    lengths.back().push_back(inputs);
    room -= inputs;
    out.tokens.insert(out.tokens.end(), all.begin(), all.end() - 1);
    for (size_t t = 1; t < all.size(); ++t)
      out.targets.push_back(t < pair.prompt.size() ? kNoTarget : all[t]);
    out.kinds.insert(out.kinds.end(), static_cast<size_t>(inputs), static_cast<int32_t>(kind));
  };
  const bool labelled = answers == Answers::kLabelled;
  const auto answer_of = [&](size_t i) -> const std::vector<int32_t>& {
    return i % 2 == 0 ? pairs[i].chosen : pairs[i].rejected;
  };
  for (size_t i = 0; i < pairs.size(); ++i) {
    const PairOfTexts& pair = pairs[i];
    const auto &first = labelled ? answer_of(i) : pair.chosen,
               &second = labelled ? answer_of((i + pairs.size() - 1) % pairs.size()) : pair.rejected;
    const int64_t inputs = 2 * std::ssize(pair.prompt) + std::ssize(first) + std::ssize(second) - 2;
    if (inputs > room || in_row == most) begin_row();
    ++in_row;
    add(pair, first,
        !labelled    ? DocumentKind::kChosen
        : i % 2 == 0 ? DocumentKind::kDesirable
                     : DocumentKind::kUndesirable);
    add(pair, second, labelled ? DocumentKind::kMismatched : DocumentKind::kRejected);
  }
  while (std::ssize(lengths) < count) begin_row();
  pad();
  out.documents = documents_of(lengths);
  return out;
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
  const double all = static_cast<double>(pairs.size());
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
      fmt::print("[ measured ] {}: losses {:.1e}, norms {:.1e}, figures {:.1e}, gradients {:.1e} ({})\n",
                 what, losses, norms, figures, gradients, worst);
      EXPECT_LT(losses, tolerance::kPairLosses) << what;
      EXPECT_LT(norms, tolerance::kCpuAgainstPyTorch) << what;
      EXPECT_LT(figures, tolerance::kPairLosses) << what;
      EXPECT_LT(gradients, tolerance::kCpuAgainstPyTorch) << what << ": " << worst;
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

// Random pairs in sequences of kSharedModel: those of a step are unequal in number and in tokens.
std::vector<PairOfTexts> random_pairs(int count) {
  std::vector<PairOfTexts> pairs;
  for (int i = 0; i < count; ++i) {
    const Philox random(99, static_cast<uint64_t>(i));
    const auto draw = [&](uint64_t first, uint32_t most) {
      std::vector<int32_t> tokens(1 + random.bits(first)[0] % most);
      for (size_t t = 0; t < tokens.size(); ++t)
        tokens[t] = static_cast<int32_t>(random.bits(first + 1 + t)[1] % 61);
      return tokens;
    };
    pairs.push_back({draw(0, 4), draw(100, 9), draw(200, 6)});
  }
  return pairs;
}

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
  const SequencesView own = SequencesView(all).tokens_from(ranks.rank * mine, mine);
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

}  // namespace
}  // namespace tessera::testing
