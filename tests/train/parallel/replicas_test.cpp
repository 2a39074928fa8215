// Ranks in replicas, each of which splits the parameters: a step is that of one rank.
#include <filesystem>

#include "model/muon.h"
#include "tests/data_parallel.h"
#include "tests/model_families.h"
#include "train/run/checkpoint.h"
#include "train/run/checkpoint_folder.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

constexpr Shard kSplit[] = {Shard::kOptimizer, Shard::kGradients, Shard::kWeights};

struct Replicas : ::testing::Test {
  void SetUp() override {
    std::string why_not;
    if (!can_communicate(Device::kCpu, why_not)) GTEST_SKIP() << why_not;
  }
};

// `shape` with its sequences on so many ranks
RunShape on(const RunShape& shape, const MeshShape& mesh) {
  RunShape own = shape;
  own.mesh = mesh, own.micro_steps = kSharedSequences / mesh.data / own.micro_batch;
  return own;
}

// The losses of one rank, equal weights at all, and the same bits twice
void expect_the_losses_of_one(const Ranks& ranks, const RunShape& shape, SharedRun run = {}) {
  RunShape one = on(shape, {});
  if (one.micro_batch > 1) one.micro_batch = 1, one.micro_steps = kSharedSequences;
  run.steps = 8;
  run.shape = one;
  const std::vector<double> expected = run_shared({}, run);
  EXPECT_LT(expected.back(), expected.front()) << "nothing was learned";
  std::string weights;
  run.shape = shape;
  run.after = [&](TrainState& state) { weights = weight_bytes(state); };
  const std::vector<double> ours = run_shared(ranks, run);
  EXPECT_LT(largest_difference({ours[0]}, {expected[0]}), tolerance::kFirstLossOfRanks);
  EXPECT_LT(largest_difference(ours, expected), tolerance::kLossesOfRanks);
  for (const std::string& theirs : ranks.exchange(weights)) EXPECT_TRUE(theirs == weights);
  const std::string before = weights;
  EXPECT_EQ(run_shared(ranks, run), ours) << "twice the same run";
  EXPECT_TRUE(weights == before);
}

TEST_F(Replicas, OfTwoRanks) {
  on_ranks(4, [](const Ranks& ranks) {
    for (const Shard shard : kSplit) {
      SCOPED_TRACE(name_of(shard));
      RunShape shape = shared_shape(4, shard, 2);
      expect_the_losses_of_one(ranks, shape);
      expect_the_losses_of_one(ranks, shape, {.uneven = true});
      shape.micro_batch = 3, shape.micro_steps = 1;
      expect_the_losses_of_one(ranks, shape);
    }
  });
}

TEST_F(Replicas, OfOneRankEach) {
  on_ranks(3, [](const Ranks& ranks) {
    for (const Shard shard : kSplit) expect_the_losses_of_one(ranks, shared_shape(3, shard, 3));
  });
}

TEST_F(Replicas, ThatShareTheTokensOfASequence) {
  on_ranks(4, [](const Ranks& ranks) {
    for (const Shard shard : kSplit) {
      const RunShape shape = on(shared_shape(1, shard), {.data = 2, .context = 2, .replicas = 2});
      expect_the_losses_of_one(ranks, shape);
    }
  });
}

TEST_F(Replicas, WithMuonDropoutDocumentsAndExperts) {
  on_ranks(4, [](const Ranks& ranks) {
    for (const Shard shard : {Shard::kOptimizer, Shard::kWeights}) {
      const RunShape plain = shared_shape(4, shard, 2);
      RunShape shape = plain;
      shape.rule = muon({}, DType::kF32);
      expect_the_losses_of_one(ranks, shape);
      shape = plain;
      shape.model.dropout = {.embedding = 0.05, .residual = 0.1, .attention = 0.1};
      expect_the_losses_of_one(ranks, shape);
      shape = plain;
      shape.documents = true;
      expect_the_losses_of_one(ranks, shape, {.longest_document = 7});
      shape = plain;
      shape.model = with_experts(with_llama_parts(kSharedModel));
      shape.router_losses = {.balance = 0.02, .z = 1e-3};
      expect_the_losses_of_one(ranks, shape);
    }
  });
}

// Where anything lies changes no bit.
TEST_F(Replicas, InHostMemory) {
  on_ranks(4, [](const Ranks& ranks) {
    for (const Shard shard : kSplit)
      for (const int64_t micro_batch : {1, 3}) {
        RunShape shape = shared_shape(4, shard, 2);
        shape.micro_batch = micro_batch, shape.micro_steps = 3 / micro_batch;
        expect_offload_changes_no_bit(ranks, shape, {.optimizer = true, .gradients = true});
        if (shard == Shard::kWeights)
          expect_offload_changes_no_bit(ranks, shape,
                                        {.optimizer = true, .weights = true, .gradients = true});
      }
  });
}

TEST_F(Replicas, ThePlanOfARankIsItsLedger) {
  on_ranks(4, [](const Ranks& ranks) {
    for (const Shard shard : kSplit) {
      const std::unique_ptr<Backend> be = make_cpu_backend();
      const Mesh mesh(*be, {.data = 4, .replicas = 2}, ranks);
      expect_ledger_is_plan(*be, shared_shape(4, shard, 2), mesh.step_axes());
    }
  });
}

// Of three micro-steps only the last one's sums go from replica to replica.
TEST_F(Replicas, ExchangeEachGradientOnceAStep) {
  on_ranks(4, [](const Ranks& ranks) {
    for (const Shard shard : kSplit) {
      const RunShape shape = shared_shape(4, shard, 2);
      const std::unique_ptr<Backend> be = make_cpu_backend();
      const Mesh mesh(*be, shape.mesh, ranks);
      Arena arena = make_arena({});
      TrainState state(*be, arena, shape, mesh.step_axes());
      state.initialize(1);
      const std::vector<int32_t> ids(static_cast<size_t>(shape.sequences_per_rank() * shape.sequence_length),
                                     1);
      const int64_t before = mesh.axis(Axis::kReplica).started();
      state.step({.tokens = ids, .targets = ids}, shape.tokens_per_step(), kTestOptimizer, 1e-3, 1);
      EXPECT_EQ(mesh.axis(Axis::kReplica).started() - before, kSharedModel.layers + 1);
    }
  });
}

TEST_F(Replicas, ACheckpointContinuesOnOneRank) {
  const fs::path folder = fs::temp_directory_path() / "tessera_replicas_checkpoint";
  const RunShape shape = shared_shape(4, Shard::kWeights, 2);
  on_ranks(4, [&](const Ranks& ranks) {
    run_shared(ranks, {.shape = shape, .steps = 3, .after = [&](TrainState& state) {
                         save_checkpoint(folder, state,
                                         {.step = 3, .device = Device::kCpu, .data = "builtin"},
                                         {.barrier = [&] { ranks.exchange("the folder is there"); }});
                       }});
  });
  if (std::getenv("TESSERA_TEST_RANK")) return;
  const std::vector<double> whole = run_shared({}, {.shape = shared_shape(1), .steps = 6});
  const std::vector<double> rest = run_shared(
      {}, {.shape = shared_shape(1), .first_step = 3, .steps = 3, .before = [&](TrainState& state) {
             load_checkpoint(*latest_checkpoint(folder), state);
           }});
  EXPECT_LT(largest_difference(rest, {whole[3], whole[4], whole[5]}), tolerance::kLossesOfRanks);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace tessera::testing
