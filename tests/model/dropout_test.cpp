// Where a model drops, and how its probabilities and keys become those of the masks.
#include "model/dropout.h"

#include <set>

#include "tests/says.h"
#include "tests/support.h"
#include "tests/tolerances.h"
#include "tests/train_steps.h"

namespace tessera::testing {
namespace {

template <class F>
std::string refusal(const F& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "was not refused";
}

TEST(DropoutProbability, IsTheNearestMultipleOfOne256th) {
  EXPECT_EQ(dropout_threshold(0), 0);
  EXPECT_EQ(dropout_threshold(0.1), 26);
  EXPECT_EQ(dropout_threshold(0.2), 51);
  EXPECT_EQ(dropout_threshold(0.5), 128);
  EXPECT_EQ(dropout_threshold(1.0 / 512), 1);
  EXPECT_EQ(dropout_threshold(0.998), 255);
  for (int threshold = 0; threshold < 256; ++threshold)
    EXPECT_EQ(dropout_threshold(threshold / 256.0), threshold);
  for (const double p : {-0.1, 1.0, 1.5, std::nan("")})
    EXPECT_TRUE(says(refusal([&] { dropout_threshold(p); }),
                     {"probability", "0", "below 1", fmt::format("found {}", p)}));
  EXPECT_TRUE(says(refusal([] { dropout_threshold(0.001); }),
                   {"multiple of 1/256", "0.001 would be 0", "0.00390625 to 0.99609375"}));
  EXPECT_NE(refusal([] { dropout_threshold(0.999); }).find("0.999 would be 1"), std::string::npos);
}

TEST(DropoutProbability, IsPrintedAsItIsUsed) {
  EXPECT_EQ(text_of(DropoutConfig{}), "");
  EXPECT_EQ(text_of(DropoutConfig{0.1, 0.1, 0.1}),
            "0.1016 (26/256) on embeddings, residual branches and attention");
  EXPECT_EQ(text_of(DropoutConfig{.embedding = 0.1, .residual = 0.2, .attention = 0.1}),
            "0.1992 (51/256) on residual branches, 0.1016 (26/256) on embeddings and attention");
  EXPECT_EQ(text_of(DropoutConfig{.attention = 0.5}), "0.5 (128/256) on attention");
}

TEST(DropoutPlaces, EveryLayerAndKindHasItsOwn) {
  std::set<uint32_t> places{place_of(DropoutKind::kEmbedding, 0)};
  for (int64_t layer = 0; layer < kMostDropoutLayers; ++layer)
    for (const DropoutKind kind :
         {DropoutKind::kAttention, DropoutKind::kAttentionBranch, DropoutKind::kMlpBranch}) {
      const uint32_t place = place_of(kind, layer);
      ASSERT_EQ(place % Dropout::kHeads, 0u);
      ASSERT_TRUE(places.insert(place).second) << layer;
    }
  EXPECT_TRUE(
      says(refusal([] { place_of(DropoutKind::kAttention, 16384); }), {"16384 layers", "found layer 16384"}));
}

// Philox with one stream is a bijection of its indices, so steps of one seed cannot share all 128 bits; here
// the 64 of a key differ too.
TEST(DropoutKeys, EverySeedAndStepHasItsOwn) {
  std::set<uint64_t> keys;
  for (uint64_t seed : {0, 1, 2, 1337})
    for (int64_t step = 1; step <= 5000; ++step) ASSERT_TRUE(keys.insert(dropout_key(seed, step)).second);
  EXPECT_EQ(dropout_key(1337, 5), dropout_key(1337, 5));
}

TEST(DropoutPlaces, NothingActiveDropsNothing) {
  const ActiveDropout none{}, some{.probabilities = {.residual = 0.5}, .key = 3, .first_sequence = 7};
  for (const DropoutKind kind : {DropoutKind::kEmbedding, DropoutKind::kAttention,
                                 DropoutKind::kAttentionBranch, DropoutKind::kMlpBranch})
    EXPECT_FALSE(none.at(kind, 2));
  EXPECT_FALSE(some.at(DropoutKind::kEmbedding));
  EXPECT_FALSE(some.at(DropoutKind::kAttention, 1));
  const Dropout branch = some.at(DropoutKind::kMlpBranch, 1);
  EXPECT_EQ(branch.threshold, 128);
  EXPECT_EQ(branch.key, 3u);
  EXPECT_EQ(branch.first_sequence, 7u);
  EXPECT_EQ(branch.place, place_of(DropoutKind::kMlpBranch, 1));
}

// ---- what must not change a step with dropout ----

constexpr DropoutConfig kEverywhere{.embedding = 0.1, .residual = 0.2, .attention = 0.15};

RunShape dropping(int64_t micro_batch, AttentionKind attention = AttentionKind::kFlash) {
  return {
      .model =
          {.vocab_size = 61, .context = 48, .layers = 3, .heads = 2, .channels = 24, .dropout = kEverywhere},
      .micro_batch = micro_batch,
      .micro_steps = 8 / micro_batch,
      .sequence_length = 37,
      .attention = attention,
      .seed = 1337};
}

StepsResult run(const RunShape& shape, HostTensors& make) { return run_steps({}, shape, 3, make, 1e-3); }

// A mask of another micro-batch would change the losses by some percent.
TEST(DroppingSteps, MicroBatchesDropTheSame) {
  HostTensors make;
  const StepsResult whole = run(dropping(8), make);
  for (const int64_t micro_batch : {4, 2, 1})
    for (const AttentionKind attention : {AttentionKind::kFlash, AttentionKind::kNaive}) {
      SCOPED_TRACE(fmt::format("{} {}", micro_batch, name_of(attention)));
      const StepsResult parts = run(dropping(micro_batch, attention), make);
      EXPECT_NEAR(parts.losses[0] / whole.losses[0], 1, tolerance::kFirstLossOfRanks);
      EXPECT_NEAR(parts.grad_norms[0] / whole.grad_norms[0], 1, tolerance::kCpuAgainstPyTorch);
      for (size_t i = 0; i < whole.first_gradients.size(); ++i)
        EXPECT_LT(relative_error(parts.first_gradients[i].tensor, whole.first_gradients[i].tensor),
                  tolerance::kCpuAgainstPyTorch)
            << whole.first_gradients[i].name;
      for (size_t i = 1; i < whole.losses.size(); ++i)
        EXPECT_NEAR(parts.losses[i] / whole.losses[i], 1, tolerance::kLossesOfRanks);
    }
}

TEST(DroppingSteps, RecomputingChangesNoBit) {
  HostTensors make;
  for (const AttentionKind attention : {AttentionKind::kFlash, AttentionKind::kNaive}) {
    RunShape shape = dropping(4, attention);
    const StepsResult kept = run(shape, make);
    for (const Keep keep : {kKeepOutputs, kKeepAttention, kKeepAllButMlp, Keep{Recomputed::kAttention}}) {
      shape.keep = keep;
      const StepsResult again = run(shape, make);
      expect_same_bits(again, kept);
      for (size_t i = 0; i < kept.first_gradients.size(); ++i)
        EXPECT_EQ(std::memcmp(again.first_gradients[i].tensor.data, kept.first_gradients[i].tensor.data,
                              kept.first_gradients[i].tensor.bytes()),
                  0)
            << text_of(keep) << " " << kept.first_gradients[i].name;
    }
  }
}

TEST(DroppingSteps, EverySeedAndStepDropsOthers) {
  HostTensors make;
  RunShape shape = dropping(8), other = shape;
  other.seed = 1338;
  const StepsResult a = run(shape, make), b = run(other, make);
  EXPECT_GT(std::abs(a.losses[0] / b.losses[0] - 1), 1e-5);

  const std::unique_ptr<Backend> be = make_cpu_backend();
  Arena arena = Arena::host();
  TrainState state(*be, arena, shape);
  state.initialize(3);
  const std::vector<int32_t> tokens(static_cast<size_t>(shape.tokens_per_step()), 5);
  const SequencesView sequences{.tokens = tokens, .targets = tokens};
  std::set<double> losses;
  for (int64_t step = 1; step <= 4; ++step) {
    state.step(sequences, shape.tokens_per_step(), kTestOptimizer, 0, step);  // the weights stay
    losses.insert(state.finish_step().loss);
  }
  EXPECT_EQ(losses.size(), 4u);
  state.step(sequences, shape.tokens_per_step(), kTestOptimizer, 0, 2);
  EXPECT_TRUE(losses.contains(state.finish_step().loss));
}

// The same loss and logits, to the bit, as a session of the model without dropout
TEST(DroppingSteps, EvaluationAndSamplesDropNothing) {
  const std::unique_ptr<Backend> be = make_cpu_backend();
  const std::vector<int32_t> tokens(37 * 2, 7);
  for (const AttentionKind attention : {AttentionKind::kFlash, AttentionKind::kNaive}) {
    std::vector<double> losses;
    std::vector<std::vector<float>> logits;
    for (const bool drops : {true, false}) {
      RunShape shape = dropping(2, attention);
      if (!drops) shape.model.dropout = {};
      Arena arena = Arena::host();
      TrainState state(*be, arena, shape);
      state.initialize(5);
      losses.push_back(state.session().evaluate({.tokens = tokens, .targets = tokens}, 2));
      logits.push_back(state.session().last_logits(std::span(tokens).first(9), 1));
    }
    EXPECT_EQ(losses[0], losses[1]);
    EXPECT_EQ(logits[0], logits[1]);
  }
}

// Only the gradient of a branch is one tensor more, and only where branches are dropped.
TEST(DroppingSteps, MemoryGrowsByTheGradientOfABranch) {
  const auto activations = [](const DropoutConfig& dropout) {
    RunShape shape = dropping(8);
    shape.model.vocab_size = 3;  // the peak is in a block's backward, with one thread, too
    shape.classifier_chunk = 37;
    shape.model.dropout = dropout;
    return plan_memory(shape, {}).at_peak()[static_cast<int>(MemoryTag::kActivations)];
  };
  EXPECT_EQ(activations({.embedding = 0.1, .attention = 0.1}), activations({}));
  const int64_t branch = 8 * 37 * 24 * 4;
  EXPECT_EQ(activations({.residual = 0.1}) - activations({}), (branch + 255) / 256 * 256);
}

}  // namespace
}  // namespace tessera::testing
