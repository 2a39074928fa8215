// Training with weights in host memory, on the CPU: the bits, the copies, the plan, several ranks.
#include "tests/data_parallel.h"
#include "tests/offloaded_steps.h"

namespace tessera::testing {
namespace {

constexpr Offload kWeights{.weights = true},
    kAllOffloads{.optimizer = true, .activations = true, .weights = true};

TEST(WeightsOffload, ChangesNoBit) {
  const std::unique_ptr<Backend> be = make_cpu_backend();
  for (const auto& [name, shape] : offloaded_shapes(DType::kF32)) {
    SCOPED_TRACE(name);
    for (const Offload& offload : {kWeights, kAllOffloads})
      expect_offload_changes_no_bit(*be, shape, Poison::kYes, offload);
  }
}

TEST(WeightsOffload, ChangesNoBitOfAnyNumberOfBlocks) {
  const std::unique_ptr<Backend> be = make_cpu_backend();
  for (int64_t layers = 1; layers <= 4; ++layers) {
    RunShape shape = offloaded_shapes(DType::kF32)[2].shape;
    shape.model.layers = layers;
    expect_offload_changes_no_bit(*be, shape, Poison::kYes, kWeights);
  }
}

TEST(WeightsOffload, ChangesNoBitInFp8) {
  const std::unique_ptr<Backend> be = make_cpu_backend();
  RunShape shape = offloaded_shapes(DType::kF32)[2].shape;
  shape.fp8 = {.gemm_dtype = GemmDtype::kFp8, .edges = true, .head = true};
  expect_offload_changes_no_bit(*be, shape, Poison::kYes, kWeights);
}

// On the device are two blocks, and what is outside of them.
TEST(WeightsOffload, APlanIsTheLedger) {
  for (const auto& [name, plain] : offloaded_shapes(DType::kF32)) {
    SCOPED_TRACE(name);
    for (const Offload& offload : {kWeights, kAllOffloads}) {
      RunShape shape = plain;
      shape.offload = offload;
      expect_plan_is_the_step({}, shape);
    }
  }
  RunShape shape = offloaded_shapes(DType::kF32)[0].shape;
  shape.offload = kWeights;
  std::vector<int64_t> on_device, on_host;
  for (const int64_t layers : {5, 9}) {
    shape.model.layers = layers;
    on_device.push_back(plan_memory(shape, {}).peak_of_each()[static_cast<int>(MemoryTag::kWeights)]);
    on_host.push_back(plan_stages(shape, {}).host_bytes);
  }
  EXPECT_EQ(on_device[0], on_device[1]);
  const int64_t C = shape.model.channels, block = 12 * C * C * 4;
  EXPECT_GE(on_host[1] - on_host[0], 4 * block);
  EXPECT_LT(on_host[1] - on_host[0], 4 * block * 11 / 10);  // with biases and norms
}

// Two blocks are still in their buffers when the direction changes, and so are embeddings and a tied head.
TEST(WeightsOffload, CopiesEachBlockTwiceInAMicroStep) {
  RunShape shape = offloaded_shapes(DType::kF32)[1].shape;  // three micro-steps, tied
  shape.offload = kWeights;
  int64_t starts = 0;
  const std::unique_ptr<Backend> be =
      make_plan_backend({}, {}, [&] { return QueueObserver{.start = [&](int64_t) { ++starts; }}; });
  Arena arena = Arena::plan(Device::kCpu);
  TrainState state(*be, arena, shape);
  state.walk_step(shape.micro_steps);
  EXPECT_EQ(starts, 1 + 2 + shape.micro_steps * 2 * (shape.model.layers - 2));
}

TEST(WeightsOffload, RanksSplitThem) {
  std::string why_not;
  if (!can_communicate(Device::kCpu, why_not)) GTEST_SKIP() << why_not;
  for (const int count : {2, 3})
    on_ranks(count, [&](const Ranks& ranks) {
      expect_offload_changes_no_bit(ranks, shared_shape(count, Shard::kWeights), kAllOffloads);
    });
}

TEST(WeightsOffload, RefusesRanksThatAllHaveAll) {
  on_ranks(2, [&](const Ranks& ranks) {
    RunShape shape = shared_shape(2, Shard::kOptimizer);
    shape.offload = kWeights;
    EXPECT_THROW(run_shared(ranks, {.shape = shape, .steps = 1}), Error);
  });
}

}  // namespace
}  // namespace tessera::testing
