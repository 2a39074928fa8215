// Muon in training: the matrices that it updates, by any number of ranks, from checkpoints, in any memory.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/lora_steps.h"
#include "tests/model_variants.h"
#include "tests/muon_steps.h"
#include "tests/offloaded_steps.h"
#include "tests/reference_folder.h"
#include "train/run/checkpoint.h"
#include "train/run/checkpoint_folder.h"
#include "train/session/memory_plan.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

// Five blocks of grouped heads and a gated MLP: q, k, v, out, gate, up, down, of four shapes
ModelConfig five_blocks() {
  ModelConfig model = families_of(kSharedModel).back().model;
  model.layers = 5;
  return model;
}

struct MuonRanks : ::testing::Test {
  void SetUp() override {
    std::string why_not;
    if (!can_communicate(Device::kCpu, why_not)) GTEST_SKIP() << why_not;
  }
};

TEST_F(MuonRanks, SeveralUpdateToTheBitAsOneDoes) {
  for (const int size : {2, 3, 4})
    on_ranks(size, [&](const Ranks& ranks) {
      for (const ModelConfig& model : {kSharedModel, five_blocks()})
        for (const int64_t group_bytes : {int64_t{1}, int64_t{60'000}, int64_t{1} << 30}) {
          MuonRun run{.model = model, .muon = {.variance = group_bytes != 1, .group_bytes = group_bytes}};
          const std::string one = muon_bytes(run, {});
          for (const Shard shard : kAllShards) {
            run.shards = {shard, ranks.size};
            EXPECT_TRUE(muon_bytes(run, ranks) == one) << name_of(shard) << ", groups of " << group_bytes;
          }
        }
    });
}

TEST_F(MuonRanks, MomentsInBf16AreRoundedAlike) {
  on_ranks(3, [&](const Ranks& ranks) {
    MuonRun run{.moments = DType::kBF16};
    const std::string one = muon_bytes(run, {});
    run.shards = {Shard::kWeights, 3};
    EXPECT_TRUE(muon_bytes(run, ranks) == one);
  });
}

RunShape muon_shape(int ranks, Shard shard = Shard::kOptimizer, const MuonConfig& config = {}) {
  RunShape shape = shared_shape(ranks, shard);
  shape.rule = muon(config);
  return shape;
}

TEST_F(MuonRanks, TrainWithTheLossesOfOne) {
  for (const Shard shard : kAllShards)
    expect_the_losses_of_one(shard, [](RunShape& shape) { shape.rule = muon({}), shape.model.layers = 5; });
}

TEST_F(MuonRanks, ThatShareASequence) {
  on_ranks(2, [&](const Ranks& ranks) {
    RunShape one = muon_shape(1), shape = muon_shape(2);
    shape.mesh = {.data = 1, .context = 2}, shape.micro_steps = one.micro_steps;
    const std::vector<double> expected = run_shared({}, {.shape = one, .steps = 10});
    EXPECT_LT(largest_difference(run_shared(ranks, {.shape = shape, .steps = 10}), expected),
              tolerance::kLossesOfRanks);
  });
}

TEST_F(MuonRanks, ThePlanOfARankIsItsLedger) {
  on_ranks(3, [](const Ranks& ranks) {
    for (const Shard shard : kAllShards)
      for (const int64_t group_bytes : {int64_t{1}, int64_t{1} << 30}) {
        const std::unique_ptr<Backend> be = make_cpu_backend();
        const std::unique_ptr<Communicator> comm = make_communicator(*be, ranks);
        expect_ledger_is_plan(*be, muon_shape(3, shard, {.group_bytes = group_bytes}), {.all = comm.get()});
      }
  });
}

TEST_F(MuonRanks, WhatLiesOnTheHostChangesNoBit) {
  on_ranks(2, [&](const Ranks& ranks) {
    for (const Shard shard : {Shard::kOptimizer, Shard::kWeights})
      expect_offload_changes_no_bit(
          ranks, muon_shape(2, shard),
          {.optimizer = true, .weights = shard == Shard::kWeights, .gradients = true});
  });
}

// Three steps by some ranks, a checkpoint, and three more by others
TEST_F(MuonRanks, ResumeACheckpointOfOthers) {
  const fs::path folder = fs::temp_directory_path() / "tessera_muon_checkpoint";
  on_ranks(3, [&](const Ranks& ranks) {
    run_shared(ranks, {.shape = muon_shape(3), .steps = 3, .after = [&](TrainState& state) {
                         save_checkpoint(folder, state,
                                         {.step = 3, .device = Device::kCpu, .data = "builtin"},
                                         {.barrier = [&] { ranks.exchange("the folder is there"); }});
                       }});
  });
  on_ranks(2, [&](const Ranks& ranks) {
    const std::vector<double> whole = run_shared({}, {.shape = muon_shape(1), .steps = 6});
    const std::vector<double> rest = run_shared(
        ranks, {.shape = muon_shape(2, Shard::kWeights),
                .first_step = 3,
                .steps = 3,
                .before = [&](TrainState& state) { load_checkpoint(*latest_checkpoint(folder), state); }});
    EXPECT_LT(largest_difference(rest, {whole[3], whole[4], whole[5]}), tolerance::kLossesOfRanks);
  });
  if (!std::getenv("TESSERA_TEST_RANK")) fs::remove_all(folder);
}

struct Muons : ::testing::Test {
  fs::path folder = fs::temp_directory_path() / fmt::format("tessera_muon_{}", getpid());
  void TearDown() override { fs::remove_all(folder); }
};

// The mean over steps of the gradient is the gradient at the first one, but for a factor, which orthogonal
// matrices do not have; so one step is the formula of the gradients.
TEST_F(Muons, AStepIsTheFormulaForEachMatrix) {
  for (const ModelConfig& model : {kSharedModel, five_blocks()}) {
    RunShape shape = muon_shape(1);
    shape.model = model;
    HostTensors make;
    std::vector<NamedTensor> before, after;
    std::vector<std::vector<float>> gradients;
    std::vector<ParamPlace> places;
    run_shared({}, {.shape = shape,
                    .before = [&](TrainState& state) { before = masters_on_host(state, make); },
                    .after =
                        [&](TrainState& state) {
                          after = masters_on_host(state, make), gradients = gradients_of(state);
                          places = state.store().layout().places;
                        }});
    int matrices = 0;
    for (const ParamPlace& place : places) {
      if (!is_matrix_of_block(place.info)) continue;
      const int64_t columns = place.info.shape[1];
      int64_t first = 0;
      for (const int64_t rows : place.info.matrices) {
        if (rows == 0) continue;
        ++matrices;
        const float* gradient = gradients[place.bucket].data() + place.first + first;
        const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(rows, columns)));
        const std::vector<double> direction = orthogonal_reference(
            {gradient, gradient + rows * columns}, rows, columns, kPolarExpressReference, scale);
        std::vector<float> found;
        std::vector<double> expected;
        for (int64_t i = 0; i < rows * columns; ++i) {
          const double w = floats(before[place.index].tensor)[first + i];
          found.push_back(static_cast<float>(floats(after[place.index].tensor)[first + i] - w));
          expected.push_back(-kSharedRate * (direction[i] + kTestOptimizer.weight_decay * w));
        }
        // Weights of some 0.02, rounded to 24 bits, change by some 2e-4.
        EXPECT_LT(relative_error(found, expected), 1e-5)
            << place.info.name << ", rows from " << first / columns;
        first += rows * columns;
      }
      EXPECT_EQ(first, place.info.shape.numel()) << place.info.name;
    }
    EXPECT_EQ(matrices, model.layers * (model.gated() ? 7 : 6));
  }
}

TEST_F(Muons, AResumedRunHasTheSameBits) {
  for (const DType moments : {DType::kF32, DType::kBF16}) {
    RunShape shape = muon_shape(1);
    shape.rule = muon({.variance = true}, moments);
    std::string expected, found;
    run_shared({}, {.shape = shape, .steps = 5, .after = [&](TrainState& state) {
                      expected = weight_bytes(state);
                    }});
    run_shared({}, {.shape = shape, .steps = 3, .after = [&](TrainState& state) {
                      save_checkpoint(folder, state, {.step = 3, .device = Device::kCpu, .data = "builtin"},
                                      {});
                    }});
    run_shared({}, {.shape = shape,
                    .first_step = 3,
                    .steps = 2,
                    .before = [&](TrainState& state) { load_checkpoint(*latest_checkpoint(folder), state); },
                    .after = [&](TrainState& state) { found = weight_bytes(state); }});
    EXPECT_TRUE(found == expected) << name_of(moments);
    fs::remove_all(folder);
  }
}

// tests/fixtures/make_muon_reference.py: three steps of torch.optim.Muon in fp64
TEST_F(Muons, StepsAreThoseOfPyTorch) {
  std::ifstream file(fixture("muon.json"));
  const nlohmann::json reference = nlohmann::json::parse(file);
  const auto numbers = [](const nlohmann::json& rows) {
    std::vector<double> all;
    for (const auto& row : rows)
      for (const double value : row) all.push_back(value);
    return all;
  };
  for (const auto& one : reference["cases"]) {
    const int64_t rows = one["shape"][0], columns = one["shape"][1], n = rows * columns;
    HostTensors make;
    CpuStream cpu;
    const auto tensor = [&](const nlohmann::json& values) {
      const Tensor t = make.empty({n});
      std::ranges::copy(numbers(values), floats(t).begin());
      return t;
    };
    const Tensor weight = tensor(one["weight"]), mean = make.zeros({n}), direction = make.zeros({n}),
                 norm = make.zeros({1}), room = make.empty({Orthogonalise::room_for(rows, columns)});
    for (int64_t step = 1; const auto& expected : one["steps"]) {
      cpu.run(MuonMomentum{.gradient = tensor(expected["gradient"]),
                           .mean = mean,
                           .direction = direction,
                           .grad_norm = norm,
                           .max_norm = 0,
                           .momentum = reference["momentum"],
                           .step = step++});
      const Tensor matrix = direction.view({rows, columns});
      cpu.run(Orthogonalise{.matrices = {&matrix, 1},
                            .room = room,
                            .polynomials = kNewtonSchulzReference.polynomials,
                            .rms = 0.2});
      cpu.run(MuonUpdate{.param = weight,
                         .low = {},
                         .direction = direction,
                         .grad_norm = norm,
                         .learning_rate = reference["learning_rate"],
                         .weight_decay = reference["weight_decay"]});
      EXPECT_LT(relative_error(floats(weight), numbers(expected["weight"])), 1e-6)
          << rows << " x " << columns;
    }
  }
}

// A mean for each matrix in place of two, and room for one group of blocks
TEST_F(Muons, KeepLessThanAdamW) {
  RunShape shape = shared_shape(1);
  shape.model.layers = 12, shape.model.channels = 96;
  const auto optimizer = [&](const UpdateRule& rule) {
    shape.rule = rule;
    return plan_memory(shape, {}).at_peak()[static_cast<int>(MemoryTag::kOptimizer)];
  };
  EXPECT_LT(optimizer(muon({.group_bytes = 1})), 0.75 * static_cast<double>(optimizer(adamw())));
  expect_plan_is_the_step({}, muon_shape(1));
}

TEST_F(Muons, FrozenBlocksAndAdapters) {
  RunShape lora = lora_shape(with_adapters(five_blocks(), 3));
  lora.rule = muon({});
  LoraSteps steps({}, lora);
  steps.set_b();
  expect_plan_is_the_step({}, lora);
  RunShape frozen = muon_shape(1);
  frozen.freeze.add(ParamPart::kAttention), frozen.freeze.add(Freeze::Blocks{0, 0});
  expect_plan_is_the_step({}, frozen);
}

}  // namespace
}  // namespace tessera::testing
