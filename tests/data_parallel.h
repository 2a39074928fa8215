// Optimizer steps of a small model by several ranks, on any device.
#pragma once

#include <cstring>

#include "tests/documents.h"
#include "tests/rank_processes.h"
#include "tests/tolerances.h"
#include "tests/train_steps.h"
#include "train/parallel/mesh.h"

namespace tessera::testing {

inline constexpr ModelConfig kSharedModel{
    .vocab_size = 61, .context = 24, .layers = 3, .heads = 2, .channels = 24};
inline constexpr double kSharedRate = 1e-3;  // ten times as large a rate amplifies roundings a million times
inline constexpr Shard kAllShards[] = {Shard::kNone, Shard::kOptimizer, Shard::kGradients, Shard::kWeights};
inline constexpr int64_t kSharedSequences = 12;  // of a step, over all ranks

struct SharedRun {
  DeviceTraits device = {};
  RunShape shape = {};
  int first_step = 0, steps = 1;
  bool uneven = false;           // of sequence i of a step, only the first i + 1 targets count
  int64_t longest_document = 0;  // in sequences of several documents
  std::function<void(TrainState&)> before = {}, after = {};  // the steps
};

inline RunShape shared_shape(int ranks, Shard shard = Shard::kOptimizer, int replicas = 1) {
  return {.model = kSharedModel,
          .micro_batch = 1,
          .micro_steps = kSharedSequences / ranks,
          .sequence_length = 17,
          .mesh = {.data = ranks, .replicas = replicas},
          .shard = shard};
}

// Where the documents of a sequence of a step lie
inline std::vector<int32_t> documents_of_sequence(const SharedRun& run, int step, int64_t sequence) {
  if (run.longest_document == 0) return {};
  const auto seed = static_cast<uint64_t>(step) * 100 + static_cast<uint64_t>(sequence);
  return documents_of(random_documents(seed, 1, run.shape.sequence_length, run.longest_document));
}

// The mean losses over the ranks. Tokens depend on the step and the sequence alone.
inline std::vector<double> run_shared(const Ranks& ranks, const SharedRun& run) {
  const std::unique_ptr<Backend> be = make_backend(run.device);
  const Mesh mesh(*be, run.shape.mesh, ranks);
  Arena arena = make_arena(run.device);
  arena.reserve(plan_memory(run.shape, run.device).peak_bytes());
  TrainState state(*be, arena, run.shape, mesh.step_axes());
  state.initialize(3);
  if (run.before) run.before(state);
  std::vector<double> losses;
  const int64_t T = run.shape.sequence_length, mine = run.shape.sequences_per_rank() * T,
                place = run.shape.mesh.place(Axis::kData, ranks.rank).rank;
  for (int step = run.first_step; step < run.first_step + run.steps; ++step) {
    std::vector<int32_t> tokens, targets, documents;
    for (int64_t i = place * mine; i < (place + 1) * mine; ++i) {
      if (i % T == 0) {
        const std::vector<int32_t> its = documents_of_sequence(run, step, i / T);
        documents.insert(documents.end(), its.begin(), its.end());
      }
      const Philox random(static_cast<uint64_t>(step), static_cast<uint64_t>(i / T));
      const auto at = [&](int64_t t) {  // a text with something to learn: multiples of a number
        return static_cast<int32_t>((random.bits(0)[0] % 5 + 1) * static_cast<uint32_t>(t) % 61);
      };
      tokens.push_back(at(i % T));
      targets.push_back(run.uneven && i % T > i / T ? kNoTarget : at(i % T + 1));
    }
    const int64_t counted_tokens =
        run.uneven ? kSharedSequences * (kSharedSequences + 1) / 2 : run.shape.tokens_per_step();
    state.step({.tokens = tokens, .targets = targets, .documents = documents}, counted_tokens, kTestOptimizer,
               kSharedRate, step + 1);
    const double loss = state.finish_step().loss;
    double sum = 0;
    if (ranks.size == 1) {
      sum = loss;
    } else {
      for (const std::string& text : ranks.exchange({reinterpret_cast<const char*>(&loss), sizeof loss})) {
        double theirs = 0;
        std::memcpy(&theirs, text.data(), sizeof theirs);
        sum += theirs;
      }
    }
    losses.push_back(sum / ranks.size);
  }
  if (run.after) run.after(state);
  return losses;
}

// The bytes of all masters, from which the weights that the forward reads follow. Every rank has to call it.
inline std::string weight_bytes(TrainState& state) {
  HostTensors make;
  std::string bytes;
  for (const auto& [name, master] : masters_on_host(state, make))
    bytes.append(master.as<char>(), master.bytes());
  return bytes;
}

// The gradients of the last step that this rank has the sums of, bucket by bucket
inline std::vector<std::vector<float>> gradients_of(TrainState& state) {
  std::vector<std::vector<float>> all;
  for (const Tensor& bucket : state.store().gradient_home().summed()) {
    HostTensors make;
    const Tensor host = make.poisoned({bucket.numel()});
    state.stream().run(Copy{bucket, host});
    state.stream().synchronize();
    all.emplace_back(host.as<float>(), host.as<float>() + host.numel());
  }
  return all;
}

inline double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a[i] - b[i]) / std::abs(b[i]));
  return worst;
}

// Two ranks on the CPU have the losses of one, and equal weights. `choose` sets what is trained.
inline void expect_the_losses_of_one(Shard shard, const std::function<void(RunShape&)>& choose) {
  std::string why_not;
  if (!can_communicate(Device::kCpu, why_not)) GTEST_SKIP() << why_not;
  const auto shape = [&](int ranks) {
    RunShape own = shared_shape(ranks, shard);
    choose(own);
    return own;
  };
  on_ranks(2, [&](const Ranks& ranks) {
    const std::vector<double> one = run_shared({}, {.shape = shape(1), .steps = 20});
    EXPECT_LT(one.back(), one.front()) << "nothing was learned";
    std::string weights;
    const std::vector<double> ours = run_shared(
        ranks,
        {.shape = shape(2), .steps = 20, .after = [&](TrainState& state) { weights = weight_bytes(state); }});
    EXPECT_LT(largest_difference(ours, one), tolerance::kLossesOfRanks);
    for (const std::string& theirs : ranks.exchange(weights)) EXPECT_TRUE(theirs == weights);
  });
}

// Of these ranks, while what is handed over is poisoned
inline void expect_offload_changes_no_bit(const Ranks& ranks, RunShape shape, const Offload& offload) {
  std::string weights;
  const auto run = [&] {
    return run_shared(ranks, {.shape = shape, .steps = 3, .after = [&](TrainState& state) {
                                weights = weight_bytes(state);
                              }});
  };
  const std::vector<double> losses = run();
  const std::string on_device = weights;
  shape.offload = offload, shape.poison = Poison::kYes;
  EXPECT_EQ(run(), losses) << name_of(shape.shard);
  EXPECT_TRUE(weights == on_device) << name_of(shape.shard);
}

}  // namespace tessera::testing
