// A step of several ranks is the step of one.
#include "tests/data_parallel.h"

#include <filesystem>

#include "tests/block_patterns.h"
#include "tests/model_variants.h"
#include "tests/tolerances.h"
#include "train/run/checkpoint.h"
#include "train/run/checkpoint_folder.h"
#include "train/session/memory_plan.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

struct DataParallel : ::testing::Test {
  void SetUp() override {
    std::string why_not;
    if (!can_communicate(Device::kCpu, why_not)) GTEST_SKIP() << why_not;
  }
};

void expect_the_losses_of_one(int size, Shard shard, const ModelConfig& model = kSharedModel) {
  const int steps = shard == Shard::kOptimizer ? 50 : 10;
  on_ranks(size, [&](const Ranks& ranks) {
    RunShape alone = shared_shape(1), shape = shared_shape(size, shard);
    alone.model = shape.model = model;
    const std::vector<double> one = run_shared({}, {.shape = alone, .steps = steps});
    if (steps == 50) {
      EXPECT_LT(one.back(), 0.8 * one.front()) << "nothing was learned";
    }
    std::string weights;
    const SharedRun shared{
        .shape = shape, .steps = steps, .after = [&](TrainState& state) { weights = weight_bytes(state); }};
    const std::vector<double> ours = run_shared(ranks, shared);
    EXPECT_LT(largest_difference({ours[0]}, {one[0]}), tolerance::kFirstLossOfRanks);
    EXPECT_LT(largest_difference(ours, one), tolerance::kLossesOfRanks);
    for (const std::string& theirs : ranks.exchange(weights)) EXPECT_TRUE(theirs == weights);
    const std::string before = weights;
    EXPECT_EQ(run_shared(ranks, shared), ours) << "twice the same run";
    EXPECT_TRUE(weights == before);
  });
}

TEST_F(DataParallel, TwoRanks) {
  for (const Shard shard : kAllShards) expect_the_losses_of_one(2, shard);
}
TEST_F(DataParallel, ThreeRanks) {
  for (const Shard shard : {Shard::kOptimizer, Shard::kWeights}) expect_the_losses_of_one(3, shard);
}
TEST_F(DataParallel, FourRanks) {
  for (const Shard shard : {Shard::kNone, Shard::kOptimizer, Shard::kGradients, Shard::kWeights})
    expect_the_losses_of_one(4, shard);
}
TEST_F(DataParallel, ThreeRanksWithEveryVariantAtOnce) {
  for (const Shard shard : {Shard::kOptimizer, Shard::kWeights})
    expect_the_losses_of_one(3, shard, variants_of(kSharedModel).back().model);
}

// Three ranks drop what one does: with a mask of another sequence the first loss would differ by percents.
TEST_F(DataParallel, TwoAndThreeRanksWithDropout) {
  ModelConfig model = kSharedModel;
  model.dropout = {.embedding = 0.05, .residual = 0.1, .attention = 0.1};
  for (const int ranks : {2, 3}) expect_the_losses_of_one(ranks, Shard::kOptimizer, model);
}

TEST_F(DataParallel, TwoRanksOfAQwen3) {
  for (const Shard shard : {Shard::kOptimizer, Shard::kWeights})
    expect_the_losses_of_one(2, shard, families_of(kSharedModel).back().model);
}

TEST_F(DataParallel, TwoRanksOfTheRacesModel) {
  const std::vector<Variant> all = parts_of(kSharedModel);
  const ModelConfig race = std::ranges::find(all, "race", &Variant::name)->model;
  for (const Shard shard : {Shard::kOptimizer, Shard::kWeights}) expect_the_losses_of_one(2, shard, race);
}

// After every step, not only at the end: an error that later steps repair would go unseen.
TEST_F(DataParallel, WeightsAreTheSameBitsAfterEveryStep) {
  on_ranks(3, [](const Ranks& ranks) {
    for (int step = 1; step <= 4; ++step)
      run_shared(ranks, {.shape = shared_shape(3), .steps = step, .after = [&](TrainState& state) {
                           const std::string mine = weight_bytes(state);
                           for (const std::string& theirs : ranks.exchange(mine))
                             EXPECT_TRUE(theirs == mine) << step;
                         }});
  });
}

TEST_F(DataParallel, TheOptimizerOfARankIsItsShareOfTheWhole) {
  for (const int ranks : {2, 4, 8}) {
    const MemoryLedger one = plan_memory(shared_shape(1), {}), many = plan_memory({.model = kSharedModel,
                                                                                   .micro_batch = 1,
                                                                                   .micro_steps = 1,
                                                                                   .sequence_length = 17,
                                                                                   .mesh = {.data = ranks}},
                                                                                  {});
    const auto optimizer = [](const MemoryLedger& ledger) {
      return static_cast<double>(ledger.at_peak()[static_cast<int>(MemoryTag::kOptimizer)]);
    };
    EXPECT_NEAR(optimizer(many) * ranks / optimizer(one), 1, 0.1) << ranks;  // padding of so small a model
  }
}

// Where the optimizer's tensors lie changes no bit and no other memory.
TEST_F(DataParallel, TheOptimizerInHostMemory) {
  RunShape shape = shared_shape(1);
  const MemoryPlan before = plan_stages(shape, {});
  const std::vector<double> losses = run_shared({}, {.shape = shape, .steps = 5});
  shape.offload.optimizer = true;
  EXPECT_EQ(run_shared({}, {.shape = shape, .steps = 5}), losses);
  const MemoryPlan plan = plan_stages(shape, {});
  EXPECT_EQ(before.host_bytes, 0);
  // But for the norm of the gradients
  EXPECT_EQ(before.ledger.peak_bytes() - plan.ledger.peak_bytes(), plan.host_bytes);
  EXPECT_GT(plan.host_bytes, 2 * 4 * kSharedModel.parameters());
  for (const Shard shard : kAllShards)
    on_ranks(2, [&](const Ranks& ranks) {
      RunShape split = shared_shape(2, shard);
      const std::vector<double> whole = run_shared(ranks, {.shape = split, .steps = 5});
      split.offload.optimizer = true;
      EXPECT_EQ(run_shared(ranks, {.shape = split, .steps = 5}), whole);
    });
}

TEST_F(DataParallel, ActivationsInHostMemory) {
  const ModelConfig qwen3 = families_of(kSharedModel).back().model;
  for (const ModelConfig& model : {kSharedModel, qwen3})
    for (const Keep keep : {kKeepAll, kKeepAttention, kKeepOutputs})
      on_ranks(2, [&](const Ranks& ranks) {
        for (const Shard shard : kAllShards) {
          RunShape shape = shared_shape(2, shard);
          shape.model = model, shape.model.layers = 5, shape.keep = keep;
          expect_offload_changes_no_bit(ranks, shape, {.optimizer = true, .activations = true});
        }
      });
}

TEST_F(DataParallel, WhatEachBlockKeepsChangesNoBit) {
  on_ranks(2, [&](const Ranks& ranks) {
    RunShape shape = shared_shape(2, Shard::kWeights);
    shape.model = families_of(kSharedModel).back().model, shape.model.layers = 5;
    const std::vector<double> kept = run_shared(ranks, {.shape = shape, .steps = 2});
    shape.offload = {.optimizer = true, .activations = true, .blocks = 4}, shape.poison = Poison::kYes;
    for (const ByBlock<Keep>& keep : mixed_keeps()) {
      shape.keep = keep;
      EXPECT_EQ(run_shared(ranks, {.shape = shape, .steps = 2}), kept) << text_of(keep);
    }
  });
}

TEST_F(DataParallel, ThePlanOfARankIsItsLedger) {
  on_ranks(2, [](const Ranks& ranks) {
    for (const Shard shard : kAllShards)
      for (const bool offload : {false, true}) {
        const std::unique_ptr<Backend> be = make_cpu_backend();
        const std::unique_ptr<Communicator> comm = make_communicator(*be, ranks);
        RunShape shape = shared_shape(2, shard);
        shape.offload.activations = offload;
        if (offload) shape.offload.blocks = 1, shape.keep = mixed_keeps()[1];
        expect_ledger_is_plan(*be, shape, {.all = comm.get()});
      }
  });
}

// Three steps by some ranks, a checkpoint, and three more by others: as one rank would have gone on.
void expect_resuming(int before, int after, DType moments = DType::kF32) {
  const auto shape = [&](int ranks) {
    RunShape shape = shared_shape(ranks);
    shape.rule = adamw(moments);
    return shape;
  };
  fs::path folder = fs::temp_directory_path() / fmt::format("tessera_elastic_{}_{}", before, after);
  on_ranks(before, [&](const Ranks& ranks) {
    run_shared(ranks, {.shape = shape(before), .steps = 3, .after = [&](TrainState& state) {
                         save_checkpoint(folder, state,
                                         {.step = 3, .device = Device::kCpu, .data = "builtin"},
                                         {.barrier = [&] { ranks.exchange("the folder is there"); }});
                       }});
  });
  const auto resume = [&](const Ranks& ranks) {
    const std::vector<double> whole = run_shared({}, {.shape = shape(1), .steps = 6});
    const std::vector<double> rest = run_shared(
        ranks, {.shape = shape(ranks.size), .first_step = 3, .steps = 3, .before = [&](TrainState& state) {
                  load_checkpoint(*latest_checkpoint(folder), state);
                }});
    EXPECT_LT(largest_difference(rest, {whole[3], whole[4], whole[5]}), tolerance::kLossesOfRanks);
  };
  if (after == 1) {
    if (!std::getenv("TESSERA_TEST_RANK")) resume({});
  } else {
    on_ranks(after, resume);
  }
  if (!std::getenv("TESSERA_TEST_RANK")) fs::remove_all(folder);
}

TEST_F(DataParallel, ACheckpointOfFourContinuesOnOne) { expect_resuming(4, 1); }
TEST_F(DataParallel, ACheckpointOfFourContinuesOnTwo) { expect_resuming(4, 2); }
TEST_F(DataParallel, ACheckpointOfTwoContinuesOnThree) { expect_resuming(2, 3); }
TEST_F(DataParallel, MomentsInBf16AreTheSameHoweverTheyAreShared) { expect_resuming(3, 2, DType::kBF16); }

}  // namespace
}  // namespace tessera::testing
