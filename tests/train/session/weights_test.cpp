// Weights of losses in a training step: a whole number is as many copies, and fractions are shares of them.
#include "model/preference_loss.h"
#include "tests/reference_folder.h"
#include "tests/tolerances.h"

namespace tessera::testing {
namespace {

struct WeightedSteps : ::testing::Test {
  static constexpr int64_t T = 12;
  std::filesystem::path folder = fixture("families/llama");
  ModelConfig model = read_model_config(folder).model;

  // Two documents in each sequence, drawn by their number
  Sequences sequences(const std::vector<int>& numbers,
                      const std::vector<std::array<float, 2>>& weights) const {
    Sequences made;
    for (size_t b = 0; b < numbers.size(); ++b)
      for (int64_t t = 0; t < T; ++t) {
        const bool first = t < 5;
        made.tokens.push_back(static_cast<int32_t>((numbers[b] * 31 + t * 7 + 3) % model.vocab_size));
        made.targets.push_back(t == 1 || t == 6
                                   ? kNoTarget
                                   : static_cast<int32_t>((numbers[b] * 17 + t * 5) % model.vocab_size));
        made.documents.insert(made.documents.end(), {first ? 0 : 5, first ? 5 : static_cast<int32_t>(T)});
        if (!weights.empty()) made.weights.push_back(weights[b][first ? 0 : 1]);
      }
    return made;
  }

  struct Found {
    TrainState::StepResult result;
    std::vector<NamedTensor> gradients;
  };
  Found step(const Sequences& of, int64_t micro_batch, const LossRule& loss, HostTensors& make) const {
    const RunShape shape{.model = model,
                         .micro_batch = micro_batch,
                         .micro_steps = std::ssize(of.tokens) / T / micro_batch,
                         .sequence_length = T,
                         .loss = loss,
                         .weights = !of.weights.empty(),
                         .classifier_chunk = 5,
                         .documents = true};
    if (!loss.pairs) expect_plan_is_the_step({}, shape);
    const std::unique_ptr<Backend> be = make_cpu_backend();
    Arena arena = Arena::host();
    TrainState state(*be, arena, shape);
    state.initialize(0);
    load_weights(folder, state);
    if (state.has_reference()) load_weights(folder, state.reference());
    state.step(of, loss.pairs ? weight_of_pairs(of, T) : weight_of_targets(of), {}, 1e-3, 1);
    Found found{.result = state.finish_step(), .gradients = {}};
    found.gradients = on_host(state.stream(), state.grads(), model, make);
    return found;
  }

  static void expect_same(const Found& a, const Found& b) {
    EXPECT_NEAR(a.result.loss, b.result.loss, 1e-6 * std::abs(b.result.loss));
    EXPECT_NEAR(a.result.grad_norm, b.result.grad_norm, 1e-5 * b.result.grad_norm);
    ASSERT_EQ(a.gradients.size(), b.gradients.size());
    for (size_t i = 0; i < a.gradients.size(); ++i) {
      const auto x = floats(a.gradients[i].tensor), y = floats(b.gradients[i].tensor);
      float largest = 0;
      for (const float value : y) largest = std::max(largest, std::abs(value));
      for (size_t k = 0; k < y.size(); ++k)
        ASSERT_NEAR(x[k], y[k], 2e-5f * largest) << a.gradients[i].name << ", " << k;
    }
  }
};

TEST_F(WeightedSteps, AreCopies) {
  for (const bool scaled : {false, true}) {  // a common factor changes nothing
    const float f = scaled ? 0.125f : 1;
    HostTensors make;
    const Found copies = step(sequences({1, 1, 1, 2}, {}), 4, cross_entropy(), make);
    for (const int64_t micro_batch : {2, 1})
      expect_same(step(sequences({1, 2}, {{3 * f, 3 * f}, {f, f}}), micro_batch, cross_entropy(), make),
                  copies);
  }
}

// The mean over documents that were weighted one by one, by their weights
TEST_F(WeightedSteps, OfDocumentsShareTheLoss) {
  HostTensors make;
  const std::vector<std::array<float, 2>> weights = {{0.5f, 2}, {0, 0.75f}};
  double loss = 0, sum = 0;
  for (size_t b = 0; b < 2; ++b)
    for (size_t d = 0; d < 2; ++d) {
      Sequences alone = sequences({b == 0 ? 4 : 9}, {});
      for (int64_t t = 0; t < T; ++t)
        if ((t < 5) != (d == 0)) alone.targets[static_cast<size_t>(t)] = kNoTarget;
      const double count = static_cast<double>(counted(alone.targets)), w = weights[b][d];
      loss += w * count * step(alone, 1, cross_entropy(), make).result.loss;
      sum += w * count;
    }
  const Found found = step(sequences({4, 9}, weights), 1, cross_entropy(), make);
  EXPECT_NEAR(found.result.loss, loss / sum, 1e-6 * loss / sum);
}

TEST_F(WeightedSteps, OfPairsAreCopies) {
  const auto pairs = [&](const std::vector<int>& numbers, const std::vector<std::array<float, 2>>& weights) {
    Sequences made = sequences(numbers, weights);
    for (size_t n = 0; n < made.tokens.size(); ++n)
      made.kinds.push_back(static_cast<int32_t>(static_cast<int64_t>(n) % T < 5 ? DocumentKind::kChosen
                                                                                : DocumentKind::kRejected));
    return made;
  };
  for (const PreferenceKind kind : {PreferenceKind::kDpo, PreferenceKind::kSimpo, PreferenceKind::kOrpo}) {
    const LossRule loss = preference_loss({.kind = kind, .beta = 0.5, .cross_entropy = 0});
    HostTensors make;
    const Found copies = step(pairs({1, 1, 1, 2}, {}), 4, loss, make);
    expect_same(step(pairs({1, 2}, {{3, 3}, {1, 1}}), 1, loss, make), copies);
    expect_same(step(pairs({1, 2}, {{1.5f, 1.5f}, {0.5f, 0.5f}}), 2, loss, make), copies);
  }
}

TEST_F(WeightedSteps, WithoutRoomForThemTheyAreRefused) {
  const Sequences weighted = sequences({1}, {{2, 2}});
  const std::unique_ptr<Backend> be = make_cpu_backend();
  Arena arena = Arena::host();
  RunShape shape{.model = model, .micro_batch = 1, .micro_steps = 1, .sequence_length = T, .documents = true};
  TrainState state(*be, arena, shape);
  state.initialize(0);
  EXPECT_THROW(state.step(weighted, counted(weighted.targets), {}, 1e-3, 1), Error);
  shape.weights = true;
  TrainState with_room(*be, arena, shape);
  with_room.initialize(0);
  EXPECT_THROW(with_room.step(weighted, 3, {}, 1e-3, 1), Error);  // less than the sum of its weights
}

}  // namespace
}  // namespace tessera::testing
