// optimizer.qk_clip: after a step, heads with too large a score have smaller weights, on any ranks.
#include <filesystem>

#include "tests/inside_steps.h"
#include "tests/muon_steps.h"
#include "train/run/checkpoint.h"
#include "train/run/checkpoint_folder.h"
#include "train/session/memory_plan.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

// Three heads of queries to each of keys; with rotary positions and biases
ModelConfig grouped() {
  ModelConfig model{.vocab_size = 61, .context = 24, .layers = 3, .heads = 6, .channels = 24};
  model.kv_heads = 2, model.positions = Positions::kRope, model.bias = Bias::kQkv;
  model.norm = NormKind::kRmsNorm, model.mlp = Mlp::kSwiglu, model.mlp_width = 40;
  return model;
}

// Scores of random weights are far below 1.
constexpr double kMost = 0.002;
RunShape clipping(int ranks, const ModelConfig& model, double most = kMost, Shard shard = Shard::kOptimizer) {
  RunShape shape = shared_shape(ranks, shard);
  shape.model = model, shape.rule = muon({}), shape.qk_clip = most;
  return shape;
}

struct Steps {
  std::vector<NamedTensor> masters;
  TrainState::StepResult last;
  std::vector<std::vector<double>> scores;
};
Steps steps_of(RunShape shape, HostTensors& make, int steps = 1) {
  Steps found;
  shape.inside_every = 1;
  run_shared({}, {.shape = shape, .steps = steps, .after = [&](TrainState& state) {
                    found.masters = masters_on_host(state, make);
                    found.last = state.finish_step();
                    found.scores = state.inside().value().largest_scores;
                  }});
  return found;
}

// Against a step without it, whose rows are then multiplied
TEST(QkClip, AStepIsThatOfTheRuleAndThenTheFormula) {
  for (const UpdateRule& rule : {muon({}), adamw()})
    for (const ModelConfig& model : {kSharedModel, grouped()}) {
      SCOPED_TRACE(fmt::format("{} with {} heads of keys", rule.name, model.kv_heads));
      HostTensors make;
      RunShape shape = clipping(1, model, 0);
      shape.rule = rule;
      const Steps plain = steps_of(shape, make);
      EXPECT_FALSE(plain.last.scores);
      std::vector<double> all;
      for (const std::vector<double>& layer : plain.scores) all.insert(all.end(), layer.begin(), layer.end());
      std::ranges::sort(all);
      const size_t above = all.size() / 2;  // so many are above the limit
      const double most = (all[all.size() - above - 1] + all[all.size() - above]) / 2;
      shape.qk_clip = most;
      const Steps clipped = steps_of(shape, make);
      EXPECT_EQ(clipped.scores, plain.scores) << "those of the forward, before the step";
      const int64_t H = model.heads, K = model.kv_heads, D = model.head_dim, group = H / K;
      const auto gamma = [&](size_t layer, int64_t h) {
        return std::min(1.0, static_cast<double>(static_cast<float>(most)) / plain.scores[layer][h]);
      };
      ASSERT_TRUE(clipped.last.scores);
      EXPECT_EQ(clipped.last.scores->clipped, static_cast<int64_t>(above));
      EXPECT_EQ(clipped.last.scores->largest, all.back());
      for (size_t i = 0; i < plain.masters.size(); ++i) {
        const auto& [name, before] = plain.masters[i];
        const Tensor after = clipped.masters[i].tensor;
        const size_t at = name.find("attention.qkv");
        if (at == std::string::npos) {
          EXPECT_EQ(std::memcmp(after.data, before.data, before.bytes()), 0) << name;
          continue;
        }
        const size_t layer = std::stoul(name.substr(name.find('.') + 1));
        const int64_t columns = before.numel() / ((H + 2 * K) * D);
        for (int64_t e = 0; e < before.numel(); ++e) {
          const int64_t head = e / (columns * D);
          double factor = 1;
          if (head < H + K) {
            const int64_t kv_head = head < H ? head / group : head - H;
            double smallest = 1;
            for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h)
              smallest = std::min(smallest, gamma(layer, h));
            factor = head < H ? gamma(layer, head) / std::sqrt(smallest) : std::sqrt(smallest);
          }
          const double expected = floats(before)[e] * factor;
          ASSERT_NEAR(floats(after)[e], expected, 4 * tolerance::kRoundingF32 * std::abs(expected))
              << name << "[" << e << "]";
        }
      }
    }
}

// A step that changes nothing itself, and the same text again: no score of the first block is above the
// limit.
TEST(QkClip, TheNextScoresAreAtTheLimit) {
  for (const ModelConfig& model : {kSharedModel, grouped()}) {
    RunShape shape = clipping(1, model);
    shape.inside_every = 1;
    const std::unique_ptr<Backend> be = make_cpu_backend();
    Arena arena = make_arena({});
    TrainState state(*be, arena, shape);
    state.initialize(3);
    std::vector<int32_t> tokens, targets;
    for (int64_t i = 0; i < shape.tokens_per_step(); ++i)
      tokens.push_back(static_cast<int32_t>(i * i % 61)), targets.push_back(static_cast<int32_t>(i % 61));
    OptimizerConfig still = kTestOptimizer;
    still.weight_decay = 0;
    std::vector<std::vector<double>> before, after;
    for (std::vector<std::vector<double>>* scores : {&before, &after}) {
      state.step({.tokens = tokens, .targets = targets, .documents = {}}, shape.tokens_per_step(), still, 0,
                 scores == &before ? 1 : 2);
      state.finish_step();
      *scores = state.inside().value().largest_scores;
    }
    for (size_t h = 0; h < before[0].size(); ++h) {
      EXPECT_NEAR(after[0][h], std::min(before[0][h], kMost), 1e-5 * kMost) << "head " << h;
    }
  }
}

TEST(QkClip, ALimitThatNoScoreReachesChangesNoBit) {
  HostTensors make;
  for (const bool graphs : {false, true}) {
    RunShape shape = clipping(1, grouped(), 0);
    shape.cuda_graphs = graphs;
    const Steps plain = steps_of(shape, make, 4);
    shape.qk_clip = 1000;
    const Steps with = steps_of(shape, make, 4);
    EXPECT_EQ(with.last.scores->clipped, 0);
    for (size_t i = 0; i < plain.masters.size(); ++i)
      EXPECT_EQ(std::memcmp(with.masters[i].tensor.data, plain.masters[i].tensor.data,
                            plain.masters[i].tensor.bytes()),
                0);
  }
}

TEST(QkClip, GraphsAndRecomputationChangeNoBit) {
  RunShape shape = clipping(1, grouped());
  std::string weights;
  const auto run = [&](const RunShape& of) {
    run_shared({},
               {.shape = of, .steps = 4, .after = [&](TrainState& state) { weights = weight_bytes(state); }});
    return weights;
  };
  const std::string expected = run(shape);
  shape.cuda_graphs = true;
  EXPECT_TRUE(run(shape) == expected);
  shape.inside_every = 2;
  EXPECT_TRUE(run(shape) == expected);
  shape.keep = ByBlock<Keep>(Keep{Recomputed::kBlock});
  EXPECT_TRUE(run(shape) == expected);
}

TEST(QkClip, ThePlanIsTheStep) {
  for (const int64_t every : {0, 2}) {
    RunShape shape = clipping(1, grouped());
    shape.inside_every = every;
    expect_plan_is_the_step({.device = Device::kCpu}, shape);
  }
}

struct QkClipRanks : ::testing::Test {
  void SetUp() override {
    std::string why_not;
    if (!can_communicate(Device::kCpu, why_not)) GTEST_SKIP() << why_not;
  }
};

TEST_F(QkClipRanks, SeveralClipToTheBitAsOneDoes) {
  for (const int size : {2, 3})
    on_ranks(size, [&](const Ranks& ranks) {
      for (const ModelConfig& model : {kSharedModel, grouped()}) {
        MuonRun run{.model = model};
        const std::string plain = muon_bytes(run, {});
        run.most_score = 100;
        const std::string one = muon_bytes(run, {});
        EXPECT_FALSE(one == plain);
        for (const Shard shard : kAllShards) {
          run.shards = {shard, ranks.size};
          EXPECT_TRUE(muon_bytes(run, ranks) == one) << name_of(shard);
        }
      }
    });
}

TEST_F(QkClipRanks, TrainWithTheLossesOfOne) {
  for (const Shard shard : kAllShards)
    expect_the_losses_of_one(shard, [](RunShape& shape) {
      shape.model = grouped(), shape.rule = muon({}), shape.qk_clip = kMost;
    });
}

TEST_F(QkClipRanks, ThatShareASequenceFindTheScoresOfOne) {
  on_ranks(2, [&](const Ranks& ranks) {
    ModelConfig sparse = grouped();
    sparse.sparse = SparseBlocks(SparsePattern{.window = 1, .global = 1, .block = 2});
    for (const ModelConfig& model : {grouped(), sparse}) {
      RunShape one = clipping(1, model), shape = clipping(2, model);
      shape.mesh = {.data = 1, .context = 2}, shape.micro_steps = one.micro_steps;
      const std::vector<double> expected = run_shared({}, {.shape = one, .steps = 6});
      EXPECT_LT(largest_difference(run_shared(ranks, {.shape = shape, .steps = 6}), expected),
                tolerance::kLossesOfRanks);
    }
  });
}

TEST_F(QkClipRanks, ThePlanOfARankIsItsLedger) {
  on_ranks(2, [](const Ranks& ranks) {
    const std::unique_ptr<Backend> be = make_cpu_backend();
    const std::unique_ptr<Communicator> comm = make_communicator(*be, ranks);
    expect_ledger_is_plan(*be, clipping(2, grouped(), kMost, Shard::kWeights), {.all = comm.get()});
  });
}

// Nothing is kept of the scores: a resumed run goes on to the bit.
TEST(QkClip, ResumesToTheBit) {
  const fs::path folder = fs::temp_directory_path() / fmt::format("tessera_qk_clip_{}", getpid());
  const RunShape shape = clipping(1, grouped());
  const std::vector<double> whole = run_shared({}, {.shape = shape, .steps = 6});
  run_shared({}, {.shape = shape, .steps = 3, .after = [&](TrainState& state) {
                    save_checkpoint(folder, state, {.step = 3, .device = Device::kCpu, .data = "builtin"});
                  }});
  const std::vector<double> rest =
      run_shared({}, {.shape = shape, .first_step = 3, .steps = 3, .before = [&](TrainState& state) {
                        load_checkpoint(*latest_checkpoint(folder), state);
                      }});
  EXPECT_EQ(rest, (std::vector<double>{whole[3], whole[4], whole[5]}));
  fs::remove_all(folder);
}

}  // namespace
}  // namespace tessera::testing
