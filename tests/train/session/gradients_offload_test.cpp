// Training with gradients in host memory, on the CPU: the bits, the copies, the plan, several ranks.
#include <deque>

#include "tests/data_parallel.h"
#include "tests/offloaded_steps.h"
#include "train/session/plan_ranks.h"

namespace tessera::testing {
namespace {

constexpr Offload kGradients{.gradients = true},
    kEverything{.optimizer = true, .activations = true, .weights = true, .gradients = true};

TEST(GradientsOffload, ChangesNoBit) {
  const std::unique_ptr<Backend> be = make_cpu_backend();
  for (const auto& [name, shape] : offloaded_shapes(DType::kF32)) {
    SCOPED_TRACE(name);
    const bool kept = shape.keep == kKeepAll;  // recomputation is the affair of activations
    expect_offload_changes_no_bit(*be, shape, Poison::kYes, kept ? kGradients : kEverything);
  }
}

// Fewer than there are buffers, as many, and more; with a tied head and one of its own
TEST(GradientsOffload, ChangesNoBitOfAnyNumberOfBlocks) {
  const std::unique_ptr<Backend> be = make_cpu_backend();
  for (const int64_t layers : {1, 2, 4, 5, 9})
    for (const bool tied : {true, false}) {
      RunShape shape = offloaded_shapes(DType::kF32)[1].shape;
      shape.model.layers = layers, shape.model.tied = tied;
      shape.micro_batch = 1, shape.sequence_length = 5;
      SCOPED_TRACE(fmt::format("{} blocks, {}", layers, tied ? "tied" : "a head of its own"));
      expect_offload_changes_no_bit(*be, shape, tied ? Poison::kNo : Poison::kYes, kGradients);
    }
}

TEST(GradientsOffload, ChangesNoBitInFp8) {
  const std::unique_ptr<Backend> be = make_cpu_backend();
  RunShape shape = offloaded_shapes(DType::kF32)[2].shape;
  shape.fp8 = {.gemm_dtype = GemmDtype::kFp8, .edges = true, .head = true};
  shape.micro_batch = 1;
  expect_offload_changes_no_bit(*be, shape, Poison::kYes, kEverything);
}

int64_t gradient_bytes(const RunShape& shape) {
  return plan_memory(shape, {}).peak_of_each()[static_cast<int>(MemoryTag::kGradients)];
}

// On the device are four blocks, and what is outside of them.
TEST(GradientsOffload, APlanIsTheLedger) {
  for (const auto& [name, plain] : offloaded_shapes(DType::kF32)) {
    SCOPED_TRACE(name);
    for (const Offload& offload : {kGradients, kEverything}) {
      if (offload == kEverything && plain.keep != kKeepAll) continue;
      RunShape shape = plain;
      shape.offload = offload;
      expect_plan_is_the_step({}, shape);
      const std::unique_ptr<Backend> be = make_cpu_backend();
      Arena arena = Arena::host();
      EXPECT_EQ(TrainState(*be, arena, shape).host_ledger()->peak_bytes(), plan_stages(shape, {}).host_bytes);
    }
  }
  RunShape shape = offloaded_shapes(DType::kF32)[1].shape;
  std::vector<int64_t> on_device, on_host, whole;
  for (const int64_t layers : {5, 9}) {
    shape.model.layers = layers;
    shape.offload = {};
    whole.push_back(gradient_bytes(shape));
    shape.offload = kGradients;
    on_device.push_back(gradient_bytes(shape)), on_host.push_back(plan_stages(shape, {}).host_bytes);
  }
  EXPECT_EQ(on_device[0], on_device[1]);
  EXPECT_EQ(on_host, whole);
  EXPECT_LT(on_device[0], whole[0]);
}

// What one queue was asked for
struct SeenCopies {
  int64_t starts = 0, bytes = 0, waited_for = 0;
};
std::deque<SeenCopies> copies_of_a_step(const RunShape& shape) {
  std::deque<SeenCopies> queues;
  const std::unique_ptr<Backend> be = make_plan_backend({}, {}, [&] {
    SeenCopies& seen = queues.emplace_back();
    return QueueObserver{
        .start = [&](int64_t bytes) { ++seen.starts, seen.bytes += bytes; },
        .wait_for = [&](int64_t count) { seen.waited_for = std::max(seen.waited_for, count); }};
  });
  Arena arena = Arena::plan(Device::kCpu);
  const PlanRanks ranks(shape, Device::kCpu);
  TrainState state(*be, arena, shape, ranks.axes());
  state.walk_step(shape.micro_steps);
  return queues;
}

// Each bucket is written once in a micro-step, and fetched in all but the first.
TEST(GradientsOffload, CopiesEachBlockOnceInEachDirection) {
  for (const int64_t layers : {1, 5})
    for (const Shard shard : {Shard::kNone, Shard::kGradients}) {
      RunShape shape = offloaded_shapes(DType::kF32)[1].shape;  // three micro-steps, tied
      shape.model.layers = layers, shape.offload = kGradients;
      if (shard != Shard::kNone) shape.mesh.data = 2, shape.shard = shard;
      const std::deque<SeenCopies> queues = copies_of_a_step(shape);
      ASSERT_EQ(queues.size(), 2u);  // back and out
      const int64_t host = plan_stages(shape, {}).host_bytes;
      for (size_t i = 0; i < 2; ++i) {
        const int64_t times = shape.micro_steps - (i == 0 ? 1 : 0);
        EXPECT_EQ(queues[i].starts, times * (layers + 1)) << layers;
        EXPECT_EQ(queues[i].waited_for, queues[i].starts) << "nothing is under way after a step";
        EXPECT_LE(queues[i].bytes, times * host);
        EXPECT_GE(queues[i].bytes, times * host * 9 / 10) << "but for the alignment of tensors";
      }
    }
}

TEST(GradientsOffload, RanksHaveTheSameBits) {
  std::string why_not;
  if (!can_communicate(Device::kCpu, why_not)) GTEST_SKIP() << why_not;
  for (const int count : {2, 3})
    on_ranks(count, [&](const Ranks& ranks) {
      for (const Shard shard : kAllShards)
        for (const int64_t micro_batch : {int64_t{1}, kSharedSequences / count}) {
          RunShape shape = shared_shape(count, shard);
          shape.model.layers = 5;
          shape.micro_batch = micro_batch, shape.micro_steps = kSharedSequences / count / micro_batch;
          Offload offload = count == 2 ? kGradients : kEverything;
          if (shard != Shard::kWeights) offload.weights = false;
          expect_offload_changes_no_bit(ranks, shape, offload);
        }
    });
}

// A rank's parts alone lie on its host, but for the sums of its micro-steps where gradients are not split.
TEST(GradientsOffload, APlanOfRanksIsTheLedger) {
  std::string why_not;
  if (!can_communicate(Device::kCpu, why_not)) GTEST_SKIP() << why_not;
  on_ranks(2, [&](const Ranks& ranks) {
    const std::unique_ptr<Backend> be = make_cpu_backend();
    for (const Shard shard : kAllShards)
      for (const int64_t micro_steps : {1, 3}) {
        SCOPED_TRACE(fmt::format("{}, {} micro-steps", name_of(shard), micro_steps));
        RunShape shape = shared_shape(2, shard);
        shape.micro_steps = micro_steps, shape.offload = kGradients;
        const Mesh mesh(*be, shape.mesh, ranks);
        expect_ledger_is_plan(*be, shape, mesh.step_axes());
        Arena arena = Arena::host();
        const TrainState state(*be, arena, shape, mesh.step_axes());
        const int64_t host = plan_stages(shape, {}).host_bytes;
        EXPECT_EQ(state.host_ledger()->peak_bytes(), host);
        RunShape whole = shape;
        whole.offload = {}, whole.shard = Shard::kNone;
        const bool part = shard >= Shard::kGradients || (shard == Shard::kOptimizer && micro_steps == 1);
        EXPECT_NEAR(static_cast<double>(host) / static_cast<double>(gradient_bytes(whole)), part ? 0.5 : 1.0,
                    0.02);
      }
  });
}

}  // namespace
}  // namespace tessera::testing
