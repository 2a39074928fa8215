// Training with activations in host memory, on the CPU: the bits, the copies, the plan.
#include "model/activation_offload.h"

#include <deque>

#include "tests/offloaded_steps.h"

namespace tessera::testing {
namespace {

TEST(ActivationOffload, ChangesNoBit) {
  const std::unique_ptr<Backend> be = make_cpu_backend();
  for (const auto& [name, shape] : offloaded_shapes(DType::kF32)) {
    SCOPED_TRACE(name);
    expect_offload_changes_no_bit(*be, shape, Poison::kYes);
  }
}

TEST(ActivationOffload, ChangesNoBitOfAnyNumberOfBlocks) {
  const std::unique_ptr<Backend> be = make_cpu_backend();
  for (int64_t layers = 1; layers <= 4; ++layers)
    for (const Poison poison : {Poison::kNo, Poison::kYes}) {
      RunShape shape = offloaded_shapes(DType::kF32)[1].shape;
      shape.model.layers = layers;
      expect_offload_changes_no_bit(*be, shape, poison);
    }
}

TEST(ActivationOffload, OfTheFirstBlocksChangesNoBitWhateverEachKeeps) {
  const std::unique_ptr<Backend> be = make_cpu_backend();
  for (const auto& [name, shape] : shapes_by_block(DType::kF32)) {
    SCOPED_TRACE(name);
    expect_the_bits_of_kept_blocks(*be, shape);
  }
}

TEST(ActivationOffload, APlanOfTheFirstBlocksIsTheLedger) {
  for (const auto& [name, shape] : shapes_by_block(DType::kF32)) {
    SCOPED_TRACE(std::string(name) + ", " + text_of(shape.keep) + ", " + text_of(shape.offload));
    expect_plan_is_the_step({}, shape);
    const std::unique_ptr<Backend> be = make_cpu_backend();
    Arena arena = Arena::host();
    EXPECT_EQ(TrainState(*be, arena, shape).host_ledger()->peak_bytes(), plan_stages(shape, {}).host_bytes);
  }
}

// Each block more is on the host but for two, and as many on the device less.
TEST(ActivationOffload, TakesTheMemoryOfTheBlocksThatAreNamed) {
  RunShape shape = offloaded_shapes(DType::kF32)[0].shape;
  shape.model.layers = 7;
  std::vector<int64_t> on_device, on_host;
  for (int64_t blocks = 1; blocks <= 7; ++blocks) {
    shape.offload = {.activations = true, .blocks = blocks};
    const MemoryPlan plan = plan_stages(shape, {});
    on_device.push_back(plan.ledger.peak_bytes()), on_host.push_back(plan.host_bytes);
  }
  EXPECT_EQ(on_host[0], 0);
  EXPECT_EQ(on_host[1], 0);
  for (size_t i = 2; i < 7; ++i) {
    EXPECT_EQ(on_host[i], static_cast<int64_t>(i - 1) * on_host[2]);
    if (i > 2) {
      EXPECT_EQ(on_device[i - 1] - on_device[i], on_device[2] - on_device[3]);
    }
  }
  shape.offload = {.activations = true};
  EXPECT_EQ(plan_stages(shape, {}).host_bytes, on_host.back());
  EXPECT_EQ(plan_stages(shape, {}).ledger.peak_bytes(), on_device.back());
}

TEST(ActivationOffload, ChangesNoBitInFp8) {
  const std::unique_ptr<Backend> be = make_cpu_backend();
  for (const Keep keep : {kKeepAll, kKeepAttention}) {
    RunShape shape = offloaded_shapes(DType::kF32)[2].shape;
    shape.keep = keep;
    shape.fp8 = {.gemm_dtype = GemmDtype::kFp8, .edges = true, .head = true};
    expect_offload_changes_no_bit(*be, shape, Poison::kYes);
  }
}

int64_t host_bytes(const RunShape& shape) { return plan_stages(shape, {}).host_bytes; }

TEST(ActivationOffload, APlanIsTheLedger) {
  for (const auto& [name, plain] : offloaded_shapes(DType::kF32)) {
    SCOPED_TRACE(name);
    for (const bool optimizer : {false, true}) {
      RunShape shape = plain;
      shape.offload = {.optimizer = optimizer, .activations = true};
      expect_plan_is_the_step({}, shape);
      const std::unique_ptr<Backend> be = make_cpu_backend();
      Arena arena = Arena::host();
      EXPECT_EQ(TrainState(*be, arena, shape).host_ledger()->peak_bytes(), host_bytes(shape));
    }
  }
}

// With more blocks the device needs no more, and the host what a block keeps.
TEST(ActivationOffload, TakesTheHostsMemoryInPlaceOfTheDevices) {
  const auto activations = [](const RunShape& shape) {
    const MemoryLedger ledger = plan_memory(shape, {});
    return ledger.peak_of_each()[static_cast<int>(MemoryTag::kActivations)] +
           ledger.peak_of_each()[static_cast<int>(MemoryTag::kAttention)];
  };
  RunShape shape = offloaded_shapes(DType::kF32)[0].shape;
  const int64_t N = shape.rows(), C = shape.model.channels, block = 16 * N * C * 4;
  for (const auto& [keep, kept] : {std::pair{kKeepAll, block}, {kKeepAttention, 2 * N * C * 4}}) {
    shape.keep = keep;
    std::vector<int64_t> on_device, on_host;
    for (const int64_t layers : {5, 9}) {
      shape.model.layers = layers;
      shape.offload = {};
      const int64_t before = activations(shape);
      shape.offload = {.activations = true};
      on_device.push_back(activations(shape)), on_host.push_back(host_bytes(shape));
      EXPECT_LT(on_device.back(), before - (layers - 3) * kept) << text_of(keep);
    }
    EXPECT_EQ(on_device[0], on_device[1]);
    EXPECT_GE(on_host[1] - on_host[0], 4 * kept);
    EXPECT_LT(on_host[1] - on_host[0], 5 * kept);  // with LSE, means and the like
  }
}

// The last two blocks are still on the device when the backward begins.
TEST(ActivationOffload, CopiesAllButTheLastTwoBlocks) {
  for (const int64_t layers : {1, 2, 3, 7}) {
    RunShape shape = offloaded_shapes(DType::kF32)[1].shape;
    shape.model.layers = layers;
    shape.offload = {.activations = true};
    struct Seen {
      int64_t starts = 0, bytes = 0, waited_for = 0;
    };
    std::deque<Seen> queues;
    const std::unique_ptr<Backend> be = make_plan_backend({}, {}, [&] {
      Seen& seen = queues.emplace_back();
      return QueueObserver{.start = [&](int64_t bytes) { ++seen.starts, seen.bytes += bytes; },
                           .wait_for = [&](int64_t count) { seen.waited_for = count; }};
    });
    Arena arena = Arena::plan(Device::kCpu);
    TrainState state(*be, arena, shape);
    state.walk_step(2);
    ASSERT_EQ(queues.size(), 2u);  // out and back
    for (const Seen& seen : queues) {
      EXPECT_EQ(seen.starts, 2 * std::max<int64_t>(layers - 2, 0)) << layers;
      EXPECT_EQ(seen.waited_for, seen.starts) << "nothing is under way after a step";
      EXPECT_LE(seen.bytes, 2 * host_bytes(shape));
      EXPECT_GE(seen.bytes, 2 * host_bytes(shape) * 9 / 10) << "but for the alignment of tensors";
    }
  }
}

}  // namespace
}  // namespace tessera::testing
