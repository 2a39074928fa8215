// Models with sparse blocks of attention in training: both kinds of attention, packed documents, ranks,
// checkpoints, plans.
#include <unistd.h>

#include <filesystem>

#include "tests/data_parallel.h"
#include "tests/documents.h"
#include "tests/says.h"
#include "train/run/checkpoint.h"
#include "train/run/checkpoint_folder.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

constexpr SparsePattern kBigBird{.window = 2, .global = 1, .random = 1, .seed = 3, .block = 8};

// Of a block that is sparse and one that sees all, in turn
ModelConfig sparse_model() {
  ModelConfig model{.vocab_size = 61, .context = 128, .layers = 3, .heads = 4, .channels = 32, .kv_heads = 2};
  model.norm = NormKind::kRmsNorm, model.positions = Positions::kRope, model.mlp = Mlp::kSwiglu;
  model.bias = Bias::kNone;
  model.sparse = SparseBlocks({{.pattern = kBigBird}, {.pattern = {}}});
  return model;
}
RunShape sparse_shape(AttentionKind attention = AttentionKind::kFlash) {
  return {.model = sparse_model(),
          .micro_batch = 2,
          .micro_steps = 2,
          .sequence_length = 101,
          .attention = attention};
}

TEST(SparseTraining, TenStepsOfFlashAreThoseOfNaive) {
  HostTensors make;
  const StepsResult naive = run_steps({}, sparse_shape(AttentionKind::kNaive), 10, make),
                    flash = run_steps({}, sparse_shape(), 10, make);
  for (size_t i = 0; i < naive.losses.size(); ++i)
    EXPECT_NEAR(flash.losses[i] / naive.losses[i], 1, tolerance::kLossesOfRanks) << i;
  for (size_t i = 0; i < naive.first_gradients.size(); ++i)
    EXPECT_LT(relative_error(flash.first_gradients[i].tensor, naive.first_gradients[i].tensor), 1e-5)
        << naive.first_gradients[i].name;
  RunShape full = sparse_shape();
  full.model.sparse = {};
  EXPECT_GT(std::abs(run_steps({}, full, 1, make).losses[0] / flash.losses[0] - 1), 1e-6)
      << "the blocks hide nothing";
}

// Blocks that show all: the bits of a model without them
TEST(SparseTraining, PatternsThatHideNothingChangeNoBit) {
  RunShape shape = sparse_shape(), full = shape;
  shape.model.sparse = SparseBlocks(SparsePattern{.window = 13, .block = 8});
  full.model.sparse = {};
  HostTensors make;
  expect_same_bits(run_steps({}, shape, 3, make), run_steps({}, full, 3, make));
}

TEST(SparseTraining, RecomputingAndGraphsChangeNoBit) {
  HostTensors make;
  const StepsResult expected = run_steps({}, sparse_shape(), 3, make);
  RunShape again = sparse_shape();
  again.keep = kKeepOutputs, again.cuda_graphs = true;
  expect_same_bits(run_steps({}, again, 3, make), expected);
}

TEST(SparseTraining, ThePlanIsTheLedger) {
  for (const AttentionKind attention : {AttentionKind::kNaive, AttentionKind::kFlash})
    for (const bool documents : {false, true}) {
      RunShape shape = sparse_shape(attention);
      shape.documents = documents;
      expect_plan_is_the_step({}, shape);
    }
  // The lists take memory once for all blocks.
  const int64_t bytes = 4 * kBigBird.lists(128).shape().numbers(),
                whole = (bytes + Arena::kAlignment - 1) / Arena::kAlignment * Arena::kAlignment;
  for (const int64_t layers : {1, 5}) {
    RunShape shape = sparse_shape();
    shape.model.layers = layers;
    const auto attention = [&] {
      return plan_memory(shape, {}).peak_of_each()[static_cast<size_t>(MemoryTag::kAttention)];
    };
    const int64_t with_lists = attention();
    shape.model.sparse = {};
    EXPECT_EQ(with_lists - attention(), whole) << layers;
  }
}

TEST(SparseTraining, TwoRanksHaveTheLossesOfOne) {
  for (const Shard shard : {Shard::kOptimizer, Shard::kWeights})
    expect_the_losses_of_one(shard, [](RunShape& shape) {
      shape.model.sparse =
          SparseBlocks(SparsePattern{.window = 1, .global = 1, .random = 1, .seed = 3, .block = 3});
    });
}

TEST(SparseTraining, AResumedRunHasTheSameBits) {
  const fs::path folder = fs::temp_directory_path() / fmt::format("tessera_sparse_{}", ::getpid());
  RunShape shape = shared_shape(1);
  shape.model.sparse = SparseBlocks(SparsePattern{.window = 1, .random = 1, .seed = 3, .block = 128});
  shape.model.context = 300, shape.sequence_length = 300;
  std::string expected, found;
  run_shared(
      {}, {.shape = shape, .steps = 3, .after = [&](TrainState& state) { expected = weight_bytes(state); }});
  run_shared({}, {.shape = shape, .steps = 2, .after = [&](TrainState& state) {
                    save_checkpoint(folder, state, {.step = 2, .device = Device::kCpu, .data = "builtin"},
                                    {});
                  }});
  run_shared({}, {.shape = shape,
                  .first_step = 2,
                  .steps = 1,
                  .before = [&](TrainState& state) { load_checkpoint(*latest_checkpoint(folder), state); },
                  .after = [&](TrainState& state) { found = weight_bytes(state); }});
  EXPECT_TRUE(found == expected);
  fs::remove_all(folder);
}

// Pieces of a text that begin and end within blocks, and reach over several: the logits are those of a
// forward over the whole text.
TEST(SparseTraining, TextsInPiecesHaveTheLogitsOfAForward) {
  const std::unique_ptr<Backend> be = make_cpu_backend();
  for (const int64_t prefill : {64, 11, 3}) {
    Arena arena = Arena::host();
    const ModelConfig model = sparse_model();
    Session session(*be, arena, {.model = model, .batch = 1, .sequence_length = model.context});
    session.initialize(5);
    HostTensors make;
    std::vector<int32_t> text;
    Decoder decoder(session, {.capacity = model.context, .prefill = prefill});
    for (const int64_t more : {13, 1, 30, 9, 2, 41, 7}) {
      const Tensor ids = make.tokens({more}, model.vocab_size);
      const std::vector<int32_t> piece(ids.as<int32_t>(), ids.as<int32_t>() + more);
      text.empty() ? decoder.start(0, piece, 0) : decoder.append(0, piece);
      text.insert(text.end(), piece.begin(), piece.end());
      const std::vector<float> found = decoder.logits(0), wanted = session.last_logits(text, 1);
      float most = 0;
      for (const float logit : wanted) most = std::max(most, std::abs(logit));
      for (size_t v = 0; v < wanted.size(); ++v)
        ASSERT_NEAR(found[v], wanted[v], tolerance::kCachedLogits * static_cast<double>(most))
            << text.size() << " tokens, " << prefill << " at once";
    }
  }
}

// Documents that begin at a block: patterns without global and random blocks show them what they show each
// alone.
TEST(SparseTraining, PackedDocumentsHaveTheLossesOfEachAlone) {
  constexpr int64_t kTokens = 96;
  ModelConfig model = sparse_model();
  model.sparse = SparseBlocks(SparsePattern{.window = 2, .stride = 3, .block = 8});
  const std::vector<int64_t> lengths{40, 8, 48};
  const std::vector<int32_t> documents = documents_of({lengths});
  HostTensors make;
  const Tensor ids = make.tokens({kTokens + 1}, model.vocab_size);
  const std::span all(ids.as<int32_t>(), static_cast<size_t>(kTokens + 1));
  for (const AttentionKind attention : {AttentionKind::kNaive, AttentionKind::kFlash}) {
    const std::unique_ptr<Backend> be = make_cpu_backend();
    Arena arena = Arena::host();
    SessionShape shape{.model = model, .batch = 1, .sequence_length = kTokens, .attention = attention};
    Session alone(*be, arena, shape);
    shape.documents = true;
    Session packed(*be, arena, shape);
    alone.initialize(5), packed.initialize(5);
    const std::vector<float> found = packed.losses(
        {.tokens = all.first(kTokens), .targets = all.last(kTokens), .documents = documents}, 1, kTokens);
    size_t first = 0;
    for (const int64_t length : lengths) {
      const auto count = static_cast<size_t>(length);
      const std::vector<float> wanted = alone.losses(
          {.tokens = all.subspan(first, count), .targets = all.subspan(first + 1, count)}, 1, length);
      for (size_t t = 0; t < count; ++t) EXPECT_NEAR(found[first + t], wanted[t], 1e-5) << first << " " << t;
      first += count;
    }
  }
}

}  // namespace
}  // namespace tessera::testing
