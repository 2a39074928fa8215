// Every way to share a step, against one rank: ranks of the data and of the context, accumulation, splits
// and replicas, with losses of text, of weighted text with z-loss and label smoothing, of a teacher, of
// experts with the losses of their routers and of pairs, where ranks count unequal numbers of tokens, whose
// sequences they take by their work, or none.
//
// AdamW's update hides the size of a gradient: with a wrong divisor it makes the same step. So its epsilon
// is 1 here, far above any gradient: an update is then the gradient times the rate, and nothing is clipped.
#include "model/distillation.h"
#include "model/preference_loss.h"
#include "tests/data_parallel.h"
#include "tests/model_families.h"
#include "train/session/equal_work.h"

namespace tessera::testing {
namespace {

constexpr int64_t kSequences = 24, kTokens = 12;
constexpr int64_t kStoredLogits = 3;  // of a teacher
constexpr int kSteps = 2;
constexpr double kRate = 0.5;
constexpr OptimizerConfig kLinear{
    .beta1 = 0, .beta2 = 0.5, .epsilon = 1, .weight_decay = 0, .max_grad_norm = 0};

enum class Loss : uint8_t { kText, kWeighted, kTaught, kStored, kExperts, kPairs };
enum class Counts : uint8_t { kUnequal, kNoneOnLast };

// Sequences of documents. Of sequence i the first targets count, between none and all; or none of the last
// half of all sequences, which are those of the last ranks.
Sequences texts(Counts counts) {
  Sequences all;
  DocumentLengths lengths;
  for (int64_t i = 0; i < kSequences; ++i) {
    const int64_t first = 1 + i % (kTokens - 1);
    lengths.push_back({first, kTokens - first});
    const int64_t counted = counts == Counts::kUnequal ? i % (kTokens + 1)
                            : i < kSequences / 2       ? kTokens - i % 3
                                                       : 0;
    for (int64_t t = 0; t < kTokens; ++t) {
      const auto at = [&](int64_t place) { return static_cast<int32_t>((i % 5 + 1) * place % 61); };
      all.tokens.push_back(at(t));
      all.targets.push_back(t < counted && t != first - 1 ? at(t + 1) : kNoTarget);
    }
  }
  all.documents = documents_of(lengths);
  return all;
}

// Weights of tokens, also 0, and what a teacher is said to have found: other numbers for every token
void add_numbers(Sequences& all, Loss loss) {
  const int64_t rows = std::ssize(all.tokens);
  for (int64_t i = 0; i < rows; ++i) {
    if (loss == Loss::kWeighted) all.weights.push_back(0.25f * static_cast<float>(i * i % 7));
    if (loss != Loss::kStored) continue;
    const bool counts = all.targets[static_cast<size_t>(i)] != kNoTarget;
    for (int64_t k = 0; k < kStoredLogits; ++k)
      all.teacher_ids.push_back(counts ? static_cast<int32_t>((i + 13 * k) % 61) : 0);
    for (int64_t k = 0; k <= kStoredLogits; ++k)
      all.teacher_logits.push_back(counts ? 0.5f * static_cast<float>((i + k) % 5) : 0);
  }
}

// A pair in a sequence: two prompts of 2 tokens with their answers, then padding. Some have none.
Sequences pairs(Counts counts, int64_t& number) {
  Sequences all;
  DocumentLengths lengths;
  number = 0;
  for (int64_t i = 0; i < kSequences; ++i) {
    const bool has = counts == Counts::kUnequal ? i % 3 != 1 : i < kSequences / 2;
    const int64_t chosen = has ? 3 + i % 3 : 0, rejected = has ? 3 + i % 2 : 0;
    lengths.emplace_back();
    for (const int64_t length : {chosen, rejected, kTokens - chosen - rejected})
      if (length > 0) lengths.back().push_back(length);
    number += has;
    for (int64_t t = 0; t < kTokens; ++t) {
      const bool first = t < chosen, second = !first && t < chosen + rejected;
      const int64_t place = first ? t : t - chosen;
      all.tokens.push_back(static_cast<int32_t>((7 * i + (first ? 3 : 5) * place) % 61));
      all.targets.push_back((first || second) && place > 0 ? static_cast<int32_t>((11 * i + t) % 61)
                                                           : kNoTarget);
      all.kinds.push_back(static_cast<int32_t>(first    ? DocumentKind::kChosen
                                               : second ? DocumentKind::kRejected
                                                        : DocumentKind::kPlain));
    }
  }
  all.documents = documents_of(lengths);
  return all;
}

struct Case {
  Loss loss;
  Counts counts;
};

struct Result {
  std::vector<double> losses, norms;
  std::vector<std::vector<float>> before, after;  // parameters, around the steps
};

std::vector<std::vector<float>> parameters(TrainState& state) {
  HostTensors make;
  std::vector<std::vector<float>> all;
  for (const auto& [name, master] : masters_on_host(state, make))
    all.emplace_back(master.as<float>(), master.as<float>() + master.numel());
  return all;
}

RunShape shape_of(const Case& c, const MeshShape& mesh, int64_t micro_steps, Shard shard) {
  RunShape shape{.model = kSharedModel,
                 .micro_batch = kSequences / mesh.data / micro_steps,
                 .micro_steps = micro_steps,
                 .sequence_length = kTokens,
                 .documents = true,
                 .mesh = mesh,
                 .shard = shard};
  shape.model.layers = 2, shape.model.context = kTokens;
  const DistillationRule rule{.temperature = 1.5, .cross_entropy = 0.25, .reverse = 0.5};
  if (c.loss == Loss::kWeighted)
    shape.weights = true, shape.loss = cross_entropy({.z_loss = 0.01, .label_smoothing = 0.1});
  if (c.loss == Loss::kTaught) shape.loss = distillation(rule), shape.teacher = shape.model;
  if (c.loss == Loss::kStored) shape.loss = distillation(rule, kStoredLogits);
  if (c.loss == Loss::kExperts) {
    shape.model = with_experts(with_llama_parts(shape.model));
    shape.router_losses = {.balance = 0.02, .z = 1e-3};
  }
  if (c.loss == Loss::kPairs) shape.loss = preference_loss({.kind = PreferenceKind::kDpo, .beta = 0.5});
  return shape;
}

// The sequences of a rank where none is taken by its work: so the last ranks have those that do not count.
std::vector<int64_t> in_turn(RunShape shape, const AxisPlace& rank) {
  shape.documents = false;
  return places_of_rank(shape, rank, {});
}

Result run(Backend& be, const Mesh& mesh, const Ranks& ranks, const Case& c, const RunShape& shape) {
  int64_t pairs_of_step = 0;
  Sequences all = c.loss == Loss::kPairs ? pairs(c.counts, pairs_of_step) : texts(c.counts);
  add_numbers(all, c.loss);
  const double number = c.loss == Loss::kPairs ? static_cast<double>(pairs_of_step) : weight_of_targets(all);
  Arena arena = make_arena({});
  TrainState state(be, arena, shape, mesh.step_axes());
  state.initialize(3);
  if (state.has_reference()) state.reference().initialize(4);
  if (state.has_teacher()) state.teacher().initialize(5);
  const auto sequence = [&](int64_t i) { return SequencesView(all).tokens_from(i * kTokens, kTokens); };
  std::vector<double> work;
  for (int64_t i = 0; i < kSequences; ++i)
    work.push_back(attention_spans(shape.model, document_lengths(sequence(i).documents)));
  const AxisPlace place = shape.mesh.place(Axis::kData, ranks.rank);
  Sequences own;
  for (const int64_t i :
       c.counts == Counts::kUnequal ? places_of_rank(shape, place, work) : in_turn(shape, place))
    append(own, sequence(i));
  Result result;
  result.before = parameters(state);
  for (int step = 1; step <= kSteps; ++step) {
    state.step(own, number, kLinear, kRate, step);
    const TrainState::StepResult found = state.finish_step();
    double sum = 0;
    const std::string text(reinterpret_cast<const char*>(&found.loss), sizeof found.loss);
    for (const std::string& each : ranks.size > 1 ? ranks.exchange(text) : std::vector{text}) {
      double theirs = 0;
      std::memcpy(&theirs, each.data(), sizeof theirs);
      sum += theirs;
    }
    result.losses.push_back(sum / ranks.size);
    result.norms.push_back(found.grad_norm);
  }
  result.after = parameters(state);
  return result;
}

// The losses, the norms, and what the steps changed of each parameter
void expect_equal(const Result& ours, const Result& one) {
  EXPECT_LT(largest_difference(ours.losses, one.losses), tolerance::kFirstLossOfRanks);
  EXPECT_LT(largest_difference(ours.norms, one.norms), tolerance::kUpdatesOfRanks);
  ASSERT_EQ(ours.after.size(), one.after.size());
  for (size_t p = 0; p < one.after.size(); ++p) {
    ASSERT_EQ(ours.before[p], one.before[p]);
    double largest = 0, worst = 0, value = 0;
    for (size_t i = 0; i < one.after[p].size(); ++i) {
      const double changed = double{one.after[p][i]} - one.before[p][i];
      largest = std::max(largest, std::abs(changed));
      value = std::max(value, std::abs(double{one.after[p][i]}));
      worst = std::max(worst, std::abs(double{ours.after[p][i]} - one.after[p][i]));
    }
    EXPECT_LE(worst, tolerance::kUpdatesOfRanks * largest + 2 * 0x1p-24 * value) << "parameter " << p;
  }
}

class Products : public ::testing::TestWithParam<MeshShape> {};

TEST_P(Products, HaveTheStepsOfOneRank) {
  const MeshShape mesh = GetParam();
  std::string why_not;
  if (!can_communicate(Device::kCpu, why_not)) GTEST_SKIP() << why_not;
  const auto compare = [&](const Ranks& ranks) {
    const std::unique_ptr<Backend> be = make_backend({});
    const Mesh together(*be, mesh, ranks), alone(*be, {}, {});  // connected once for all cases
    for (const Loss loss :
         {Loss::kText, Loss::kWeighted, Loss::kTaught, Loss::kStored, Loss::kExperts, Loss::kPairs})
      for (const Counts counts : {Counts::kUnequal, Counts::kNoneOnLast}) {
        const Case c{loss, counts};
        const Result one = run(*be, alone, {}, c, shape_of(c, {}, 1, Shard::kNone));
        EXPECT_NE(one.losses[0], one.losses[1]);
        for (const int64_t micro_steps : {1, 4})
          for (const Shard shard : kAllShards) {
            if (mesh.replicas > 1 && shard == Shard::kNone) continue;  // replicas split something
            if (mesh.ranks() == 1 && shard != Shard::kNone) continue;
            SCOPED_TRACE(fmt::format("loss {}, counts {}, {} micro-batches, {}", int(loss), int(counts),
                                     micro_steps, name_of(shard)));
            expect_equal(run(*be, together, ranks, c, shape_of(c, mesh, micro_steps, shard)), one);
          }
      }
  };
  mesh.ranks() == 1 ? compare({}) : on_ranks(static_cast<int>(mesh.ranks()), compare);
}

INSTANTIATE_TEST_SUITE_P(, Products,
                         ::testing::Values(MeshShape{}, MeshShape{.context = 2}, MeshShape{.data = 2},
                                           MeshShape{.data = 2, .replicas = 2},
                                           MeshShape{.data = 2, .context = 2},
                                           MeshShape{.data = 2, .context = 2, .replicas = 2},
                                           MeshShape{.data = 3}, MeshShape{.data = 3, .context = 2}),
                         [](const auto& info) {
                           return fmt::format("{}x{}in{}", info.param.data, info.param.context,
                                              info.param.replicas);
                         });

}  // namespace
}  // namespace tessera::testing
