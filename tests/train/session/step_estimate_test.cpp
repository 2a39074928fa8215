// Estimated steps against measured ones, and what auto finds against trying everything.
#include "train/session/step_estimate.h"

#include <gtest/gtest.h>

#include "model/stages.h"
#include "train/config/load_config.h"
#include "train/memory/run_plan.h"
#include "train/session/fastest_shape.h"

namespace tessera {
namespace {

const DeviceTraits kH100{.device = Device::kCuda, .arch = 90, .name = "H100"};

Config with(const std::string& name, std::vector<std::string> overrides, int64_t ranks = 1) {
  Config config =
      load_config(std::filesystem::path(TESSERA_SOURCE_DIR "/configs") / (name + ".yaml"), overrides);
  config.ranks = ranks;
  return config;
}

struct MeasuredStep {
  std::string config;
  int64_t batch, tokens;
  std::vector<std::string> settings;
  int64_t ranks;
  double tokens_per_second;
  int64_t micro_steps = 1;
};

std::vector<std::string> with_more(std::vector<std::string> settings, const std::vector<std::string>& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}
const std::vector<std::string> kOptimizerOnHost{"train.recompute=none", "parallel.shard=optimizer",
                                                "memory.offload=optimizer"};
// On H100s, by `./bench step` and `./train`: docs/performance.md, docs/multi_gpu.md and docs/fp8.md name the
// commands.
const std::vector<MeasuredStep> kMeasured{
    {"gpt2_small", 64, 1024, {}, 1, 670'000},
    {"gpt2_small", 64, 1024, {"train.gemm_dtype=fp8"}, 1, 717'700},
    {"gpt2_xl", 16, 1024, {}, 1, 55'800},
    {"gpt2_xl", 16, 1024, {"train.gemm_dtype=fp8"}, 1, 68'000},
    {"qwen2.5_0.5b", 32, 1024, {}, 1, 165'100},
    {"qwen2.5_1.5b", 32, 1024, {}, 1, 60'400},
    {"qwen2.5_1.5b", 32, 1024, {"train.gemm_dtype=fp8"}, 1, 71'700},
    {"llama3.1_8b", 1, 8192, {"parallel.shard=weights", "train.recompute=block"}, 2, 17'600},
    {"llama3.2_1b", 4, 8192, {}, 2, 124'000},
    {"gpt2_small", 1, 65'536, {"model.context=65536"}, 1, 105'600},
    {"llama3.2_1b", 1, 131'072, {"train.recompute=block"}, 1, 11'000},
    {"llama3.2_1b", 1, 131'072, {"train.recompute=mlp"}, 1, 13'460},
    {"llama3.2_1b", 1, 131'072, {"train.recompute=activation", "parallel.context=2"}, 2, 26'540},
    {"llama3.1_8b", 1, 8192, kOptimizerOnHost, 2, 22'940, 32},
    {"qwen2.5_14b", 2, 1024, kOptimizerOnHost, 1, 7'000, 256},
    {"qwen2.5_7b", 8, 1024, kOptimizerOnHost, 1, 14'170, 64},
    {"qwen2.5_7b", 4, 1024, with_more(kOptimizerOnHost, {"train.gemm_dtype=fp8"}), 1, 17'480, 128},
    {"qwen2.5_7b", 4, 1024, with_more(kOptimizerOnHost, {"train.gemm_dtype=fp8", "train.fp8.dw=true"}), 1,
     20'090, 128},
    {"qwen2.5_1.5b", 16, 1024, {"train.gemm_dtype=fp8"}, 1, 73'130, 16},
    {"qwen2.5_1.5b", 16, 1024, {"train.gemm_dtype=fp8", "train.fp8.dw=true"}, 1, 77'600, 16}};

TEST(StepEstimate, IsNearWhatWasMeasured) {
  for (const MeasuredStep& step : kMeasured) {
    std::vector<std::string> settings = step.settings;
    settings.push_back(fmt::format("train.micro_batch={}", step.batch));
    settings.push_back(fmt::format("train.sequence_length={}", step.tokens));
    settings.push_back(
        fmt::format("train.tokens_per_step={}", step.ranks * step.batch * step.tokens * step.micro_steps));
    const RunShape shape = run_shape(with(step.config, settings, step.ranks), kH100, MemoryLimit{});
    const double ratio = tokens_per_second(shape, kH100) / step.tokens_per_second;
    EXPECT_GT(ratio, 0.94) << step.config << " " << step.batch << " x " << step.tokens;
    EXPECT_LT(ratio, 1.06) << step.config << " " << step.batch << " x " << step.tokens;
  }
}

RunShape shape_of(std::vector<std::string> settings, int64_t ranks = 1) {
  settings.insert(settings.end(), {"train.sequence_length=2048", "train.micro_batch=2"});
  return run_shape(with("llama3.2_1b", settings, ranks), kH100, MemoryLimit{});
}

TEST(StepEstimate, GrowsWithWhatAStepDoes) {
  const auto seconds = [](const RunShape& shape) { return estimate_step(shape, kH100).seconds; };
  RunShape shape = shape_of({"train.tokens_per_step=4096"});
  const double one = seconds(shape);
  double before = one;
  for (const Keep keep : {Keep{Recomputed::kNorms}, Keep{Recomputed::kNorms, Recomputed::kActivation},
                          kKeepAllButMlp, kKeepAttention, kKeepOutputs}) {
    shape.keep = keep;
    EXPECT_GT(seconds(shape), before) << text_of(keep);
    before = seconds(shape);
  }
  shape.keep = kKeepAll;
  shape.offload.optimizer = true;
  EXPECT_GT(seconds(shape), one + 0.1) << "1.2 billion parameters take 6 bytes each over the bus";
  shape.offload.optimizer = false;
  // Micro-steps beyond the third are each like the third.
  const auto of_micro_steps = [&](int64_t count) {
    shape.micro_steps = count;
    return seconds(shape);
  };
  const double third = of_micro_steps(3) - of_micro_steps(2);
  EXPECT_NEAR(of_micro_steps(7), of_micro_steps(3) + 4 * third, 1e-6 * third);
  EXPECT_NEAR(of_micro_steps(5) - of_micro_steps(4), third, 1e-6 * third);
}

// More is sent with each split; on one rank nothing is. With little work to hide it, the step waits.
TEST(StepEstimate, WaitsForOtherRanks) {
  EXPECT_EQ(estimate_step(shape_of({"train.tokens_per_step=16384"}), kH100).waits, 0);
  DeviceTraits slow_link = kH100;
  slow_link.arch = 89;
  double before = 0;
  for (const char* split : {"optimizer", "weights"}) {
    const RunShape shape =
        shape_of({fmt::format("parallel.shard={}", split), "train.tokens_per_step=32768"}, 2);
    const StepEstimate step = estimate_step(shape, slow_link);
    EXPECT_GT(step.waits, before) << split;
    EXPECT_LT(step.waits, step.seconds);
    EXPECT_LT(estimate_step(shape, kH100).waits / estimate_step(shape, kH100).seconds,
              step.waits / step.seconds);
    before = step.waits;
  }
}

// Copies run beside the blocks, as far as the bus is fast enough for them.
TEST(StepEstimate, CopiesOfActivationsRunBesideTheBlocks) {
  RunShape shape = shape_of({"train.tokens_per_step=16384"});
  const auto added = [&](Keep keep) {
    shape.keep = keep;
    shape.offload = {};
    const double without = estimate_step(shape, kH100).seconds;
    shape.offload = {.activations = true};
    const StepEstimate with = estimate_step(shape, kH100);
    EXPECT_EQ(with.waits, 0) << "for other ranks";
    return with.seconds / without - 1;
  };
  const double all = added(kKeepAll), attention = added(kKeepAttention), inputs = added(kKeepOutputs);
  EXPECT_GT(all, 1) << "a block keeps more than the bus copies meanwhile";
  EXPECT_LT(attention, all);
  EXPECT_LT(inputs, 0.01);
  // What the bus takes to copy all blocks but two out and back, is the least that a micro-batch takes.
  shape.keep = kKeepAll;
  const double bytes = static_cast<double>(shape.micro_steps * plan_stages(shape, kH100).host_bytes);
  EXPECT_GT(estimate_step(shape, kH100).seconds, 2 * bytes / speed_of(kH100).bus);
}

const Offload kOffloads[] = {
    {}, {.optimizer = true}, {.activations = true}, {.optimizer = true, .activations = true}};

// What auto may find, one by one
std::vector<RunShape> everything(const RunShape& shape) {
  std::vector<RunShape> all;
  const int64_t sequences = shape.sequences_per_rank();
  for (const Keep keep : {kKeepAll, Keep{Recomputed::kNorms}, Keep{Recomputed::kActivation},
                          Keep{Recomputed::kNorms, Recomputed::kActivation}, kKeepAllButMlp,
                          Keep{Recomputed::kNorms, Recomputed::kMlp}, kKeepAttention, kKeepOutputs})
    for (const Offload& offload : kOffloads)
      for (const Shard shard : {Shard::kOptimizer, Shard::kGradients, Shard::kWeights})
        for (int64_t b = 1; b <= sequences && b * shape.sequence_length <= 65536; ++b) {
          if (sequences % b != 0 || (shape.ranks() == 1 && shard != Shard::kOptimizer)) continue;
          all.push_back(shape);
          all.back().keep = keep, all.back().offload = offload, all.back().shard = shard;
          all.back().micro_batch = b, all.back().micro_steps = sequences / b;
        }
  return all;
}

TEST(FastestShape, IsAsFastAsTheBestThatFits) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  for (const int64_t ranks : {1, 2})
    for (const int64_t gib : {6, 9, 13, 24}) {
      SCOPED_TRACE(fmt::format("{} ranks, {} GiB", ranks, gib));
      RunShape shape = shape_of({fmt::format("train.tokens_per_step={}", ranks * 16384)}, ranks);
      const MemoryLimit limit{.bytes = gib * kGiB, .total = gib * kGiB, .not_ours = 0};
      const auto usable = static_cast<int64_t>(0.92 * static_cast<double>(gib * kGiB));
      const RunShape found = fastest_shape(
          shape, {.micro_batch = true, .keep = true, .shard = true, .offload = true}, kH100, limit);
      EXPECT_LE(plan_memory(found, kH100).peak_bytes(), usable);
      const double own = estimate_step(found, kH100).seconds;
      double best = own;
      for (const RunShape& each : everything(shape))
        if (plan_memory(each, kH100).peak_bytes() <= usable)
          best = std::min(best, estimate_step(each, kH100).seconds);
      EXPECT_LT(own, 1.05 * best);
      if (ranks == 1) {
        EXPECT_EQ(found.offload.optimizer, gib == 6 || gib == 9 || gib == 13);
      }
    }
}

// Every pair of levels at every number of blocks
TEST(FastestShape, MixesTwoLevelsWhereThatIsFaster) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  const RunShape shape = shape_of({"train.tokens_per_step=8192", "model.layers=6"});
  int mixed = 0;
  for (const double gib : {8.2, 8.6, 9.0}) {
    SCOPED_TRACE(gib);
    const auto bytes = static_cast<int64_t>(gib * kGiB);
    const MemoryLimit limit{.bytes = bytes, .total = bytes};
    const auto usable = static_cast<int64_t>(0.92 * static_cast<double>(bytes));
    const RunShape found = fastest_shape(shape, {.keep = true}, kH100, limit);
    EXPECT_LE(plan_memory(found, kH100).peak_bytes(), usable);
    EXPECT_EQ(found.offload, shape.offload);
    EXPECT_LE(found.keep.runs().size(), 2u);
    mixed += found.keep.runs().size() == 2;
    const double own = estimate_step(found, kH100).seconds;
    double best = own, best_alike = 1e9;
    ByBlock<Keep> best_keep;
    RunShape other = shape;
    for (const RunShape& a : everything(shape))
      for (const RunShape& b : everything(shape)) {
        if (a.offload || b.offload || a.micro_batch != shape.micro_batch ||
            b.micro_batch != shape.micro_batch)
          continue;
        for (int64_t count = 1; count <= 6; ++count) {
          if (count > 1 && a.keep == b.keep) continue;
          other.keep = ByBlock<Keep>({{a.keep.at(0), count}, {b.keep.at(0)}});
          if (plan_memory(other, kH100).peak_bytes() > usable) continue;
          const double seconds = estimate_step(other, kH100).seconds;
          if (seconds < best) best = seconds, best_keep = other.keep;
          if (a.keep == b.keep) best_alike = std::min(best_alike, seconds);
        }
      }
    EXPECT_LT(own, 1.011 * best) << text_of(found.keep) << ", and " << text_of(best_keep);
    EXPECT_LT(own, found.keep.runs().size() == 2 ? 0.99 * best_alike : 1.02 * best_alike);
  }
  EXPECT_GE(mixed, 2);
}

// Copies of as many blocks as are needed
TEST(FastestShape, OffloadsTheActivationsOfSomeBlocks) {
  const std::vector<std::string> settings{"train.sequence_length=32768", "train.tokens_per_step=32768",
                                          "train.recompute=auto", "memory.offload=auto"};
  const MemoryLimit limit{.bytes = int64_t{73} << 30, .total = int64_t{80} << 30};
  const Config config = with("llama3.1_8b", settings);
  const RunShape found = run_shape(config, kH100, limit);
  const int64_t blocks = found.offload.blocks;
  EXPECT_TRUE(found.offload.activations);
  EXPECT_GT(blocks, 2);
  EXPECT_LT(blocks, 32);
  EXPECT_LE(plan_memory(found, kH100).peak_bytes(), limit.bytes);
  // One block less would not fit.
  RunShape fewer = found;
  fewer.offload.blocks = blocks - 1;
  fewer.keep = ByBlock<Keep>({{found.keep.at(0), blocks - 1}, {found.keep.at(31)}});
  EXPECT_GT(plan_memory(fewer, kH100).peak_bytes(), limit.bytes);
  // The keys that are printed give the same shape.
  std::vector<std::string> given = settings;
  for (const std::string& key : found_for_auto(config, found)) given.push_back(key);
  const RunShape again = run_shape(with("llama3.1_8b", given), kH100, limit);
  EXPECT_EQ(again.keep, found.keep);
  EXPECT_EQ(again.offload, found.offload);
  EXPECT_EQ(plan_memory(again, kH100).peak_bytes(), plan_memory(found, kH100).peak_bytes());
}

// Adapters of a model of experts: with the weights on the host whole micro-batches fit. A host without room
// for them leaves what was found without.
TEST(FastestShape, TakesWeightsFromTheHostWhereThatIsMuchFaster) {
  const auto found = [&](int64_t host_gib) {
    const MemoryLimit limit{.bytes = int64_t{23} << 30, .total = int64_t{24} << 30, .pinned = host_gib << 30};
    return run_shape(with("qwen3_30b_a3b",
                          {"train.lora.rank=16", "train.lora.base=nf4_double", "train.sequence_length=4096",
                           "train.tokens_per_step=32768", "train.recompute=auto", "memory.offload=auto"}),
                     kH100, limit);
  };
  const RunShape much = found(105), little = found(14);
  EXPECT_TRUE(much.offload.weights);
  EXPECT_FALSE(little.offload.weights);
  EXPECT_LT(estimate_step(much, kH100).seconds, estimate_step(little, kH100).seconds / 1.1);
  for (const RunShape& each : {much, little})
    EXPECT_LE(static_cast<double>(plan_memory(each, kH100).peak_bytes()), 0.92 * 24 * (1 << 30));
}

TEST(FastestShape, LeavesWhatIsGiven) {
  const MemoryLimit small{.bytes = int64_t{12} << 30, .total = int64_t{12} << 30, .not_ours = 0};
  const RunShape shape = shape_of({"train.tokens_per_step=16384"});
  const RunShape found = fastest_shape(shape, {.keep = true}, kH100, small);
  EXPECT_EQ(found.micro_batch, shape.micro_batch);
  EXPECT_EQ(found.offload.optimizer, shape.offload.optimizer);
  EXPECT_EQ(found.shard, shape.shard);
  // Nothing fits: what needs the least
  const MemoryLimit none{.bytes = 1 << 20, .total = 1 << 20, .not_ours = 0};
  EXPECT_EQ(fastest_shape(shape, {.keep = true}, kH100, none).keep, kKeepOutputs);
  // What is offloaded has to fit the host.
  const MemoryLimit tight{.bytes = int64_t{9} << 30, .total = int64_t{9} << 30};
  MemoryLimit no_host = tight;
  no_host.pinned = 1 << 20;
  EXPECT_TRUE(fastest_shape(shape, {.offload = true}, kH100, tight).offload.optimizer);
  EXPECT_FALSE(fastest_shape(shape, {.offload = true}, kH100, no_host).offload.optimizer);
  // No limit is known: everything fits.
  EXPECT_EQ(fastest_shape(shape, {.micro_batch = true, .keep = true}, kH100, {}).keep, kKeepAll);
  EXPECT_EQ(fastest_shape(shape, {.micro_batch = true, .keep = true}, kH100, {}).micro_batch, 1);
}

// With 131,072 tokens the hidden layer of an MLP is 6 GiB. It stays whole as long as that fits.
TEST(FastestShape, ChunksAnMlpOnlyWhereNothingElseFits) {
  const std::vector<std::string> settings{"train.sequence_length=131072", "train.tokens_per_step=131072",
                                          "train.mlp_chunk=auto", "train.recompute=auto"};
  const auto found = [&](int64_t gib) {
    const MemoryLimit limit{.bytes = gib << 30, .total = gib << 30};
    return run_shape(with("llama3.2_1b", settings, 1), kH100, limit);
  };
  const auto peak = [](const RunShape& shape) { return plan_memory(shape, kH100).peak_bytes(); };
  EXPECT_EQ(found(80).mlp_chunk, 0);
  int chunked = 0;
  for (const int64_t gib : {40, 37, 34, 32}) {
    SCOPED_TRACE(gib);
    const RunShape shape = found(gib);
    EXPECT_LE(peak(shape), gib << 30);
    if (shape.mlp_chunk == 0) continue;
    ++chunked;
    EXPECT_TRUE(shape.keep.all_of([](Keep keep) { return covers(keep, kKeepAllButMlp); }));
    EXPECT_EQ(std::ranges::count(kMlpChunks, shape.mlp_chunk), 1);
    RunShape whole = shape;
    whole.mlp_chunk = 0, whole.keep = kKeepOutputs;
    EXPECT_GT(peak(whole), (gib << 30) / 100 * 92);
  }
  EXPECT_GT(chunked, 1);
  EXPECT_EQ(found(1).mlp_chunk, kMlpChunks.back()) << "nothing fits: what needs the least";
  const Config config = with("llama3.2_1b", settings, 1);
  const MemoryLimit small{.bytes = int64_t{32} << 30, .total = int64_t{32} << 30};
  EXPECT_EQ(run_shape(config, kH100, small, {.mlp_chunk = 0}).mlp_chunk, 0) << "a run goes on as it was";
  EXPECT_EQ(run_shape(config, kH100, small, {.mlp_chunk = 300}).mlp_chunk, 300);
  EXPECT_EQ(run_shape(config, kH100, MemoryLimit{}).mlp_chunk, 0) << "no limit is known";
}

// 16 ranks on two machines: a slow network is crossed once a step, and a fast one by every gather. A ring
// over both machines has what the eight ranks of one can send: with 40 GB/s each nearly as much as within it.
TEST(FastestShape, HasAReplicaOnEachMachineWhereThatIsFaster) {
  const MemoryLimit limit{.bytes = int64_t{75} << 30, .total = int64_t{80} << 30, .not_ours = 0};
  const auto found = [&](const std::vector<std::string>& settings, LinkRates links = {}) {
    Config config = with("llama3.1_8b", settings, 16);
    config.nodes = 2, config.links = links;
    return run_shape(config, kH100, limit);
  };
  const std::vector<std::string> split{"parallel.shard=weights", "train.tokens_per_step=1048576"};
  EXPECT_EQ(found(split).mesh.replicas, 1);
  EXPECT_EQ(found(split, {.within = 3e11, .between = 3e9}).mesh.replicas, 2);
  EXPECT_EQ(found(with_more(split, {"parallel.replicas=1"})).mesh.replicas, 1);
  EXPECT_EQ(found(with_more(split, {"parallel.context=16"})).mesh.replicas, 1) << "sequences of all ranks";
  const RunShape one = run_shape(with("llama3.1_8b", split, 16), kH100, limit);
  EXPECT_EQ(one.mesh.replicas, 1) << "one machine";
  // What only all ranks together have room for
  const MemoryLimit tight{.bytes = int64_t{13} << 30, .total = int64_t{15} << 30, .not_ours = 0};
  Config config =
      with("llama3.1_8b", with_more(split, {"memory.offload=none", "train.sequence_length=1024"}), 16);
  config.nodes = 2;
  EXPECT_EQ(run_shape(config, kH100, tight).mesh.replicas, 1);
  // The estimate follows the network.
  RunShape two = found(split);
  const auto seconds = [&](double between) {
    two.links.between = between;
    return estimate_step(two, kH100).seconds;
  };
  EXPECT_GT(seconds(1e9), seconds(1e10));
  EXPECT_GT(seconds(1e10), 0.999 * seconds(1e11));
}

TEST(RunShape, RefusesReplicasThatAreNoEqualGroups) {
  const auto shape = [](const std::vector<std::string>& settings, int64_t ranks) {
    return run_shape(with("gpt2_small", settings, ranks), kH100, {});
  };
  EXPECT_EQ(shape({"parallel.replicas=2", "train.micro_batch=1"}, 4).mesh.ranks_of_shard(), 2);
  EXPECT_THROW(shape({"parallel.replicas=3", "train.micro_batch=1"}, 4), Error);
  EXPECT_THROW(shape({"parallel.replicas=4", "parallel.context=2", "train.micro_batch=1"}, 4), Error);
  EXPECT_THROW(shape({"parallel.replicas=2", "parallel.shard=none", "train.micro_batch=1"}, 4), Error);
}

// A run that goes on keeps what decides its bits.
TEST(FastestShape, OfARunThatGoesOnIsTheEarlierOne) {
  const Config config = with("llama3.2_1b", {"parallel.shard=auto", "train.recompute=auto"}, 2);
  const MemoryLimit limit{.bytes = int64_t{70} << 30, .total = int64_t{80} << 30, .not_ours = 0};
  EXPECT_EQ(run_shape(config, kH100, limit).shard, Shard::kOptimizer);
  const RunShape goes_on = run_shape(config, kH100, limit, {.micro_batch = 2, .shard = Shard::kWeights});
  EXPECT_EQ(goes_on.shard, Shard::kWeights);
  EXPECT_EQ(goes_on.micro_batch, 2);
  Config of_nodes = config;
  of_nodes.nodes = 2;
  for (const int64_t replicas : {1, 2})
    EXPECT_EQ(run_shape(of_nodes, kH100, limit, {.replicas = replicas}).mesh.replicas, replicas);
}

}  // namespace
}  // namespace tessera
