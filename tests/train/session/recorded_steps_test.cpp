// Which micro-steps run from a recording, on a device that counts them.
#include "tests/recorded_steps.h"

namespace tessera::testing {
namespace {

// The CPU as a device that records. What it replays is the operations that it was given when it recorded.
class RecordingCpu final : public Backend {
 public:
  const DeviceTraits& traits() const override { return cpu_->traits(); }
  void synchronize(CUstream_st* stream) override { cpu_->synchronize(stream); }
  int recorded = 0, replayed = 0;

 private:
  struct Replay final : DeviceGraph {
    Replay(RecordingCpu& owner, std::function<void()> operations)
        : owner_(owner), operations_(std::move(operations)) {}
    void launch() override {
      ++owner_.replayed;
      operations_();
    }
    RecordingCpu& owner_;
    std::function<void()> operations_;
  };
  void do_(const AnyOp& op, const Launch& launch) override {
    std::visit([&](const auto* a) { cpu_->run(*a, launch); }, op);
  }
  std::unique_ptr<DeviceGraph> capture(CUstream_st*, const std::function<void()>& operations) override {
    ++recorded;
    return std::make_unique<Replay>(*this, operations);
  }

  std::unique_ptr<Backend> cpu_ = make_cpu_backend();
};

// Of six steps the first is not recorded. The first micro-step of a step and the others have a recording
// each. Where memory lies elsewhere, each kind runs once without, and is then recorded again.
TEST(RecordedSteps, AreRecordedOnceAndHaveTheBitsOfOthers) {
  for (const NamedShape& named : recorded_shapes(DType::kF32)) {
    SCOPED_TRACE(named.name);
    HostTensors make;
    RecordingCpu recording;
    const StepsResult result = varied_steps(recording, named.shape, make);
    expect_same_bits(result, varied_steps(*make_cpu_backend(), named.shape, make));
    const int64_t kinds = std::min<int64_t>(named.shape.micro_steps, 2);
    const bool drops = static_cast<bool>(named.shape.model.dropout);
    EXPECT_EQ(recording.recorded, drops ? 0 : 2 * kinds);
    const int64_t dropped = kinds == 2 ? 1 : 0;
    EXPECT_EQ(recording.replayed, drops ? 0 : 5 * named.shape.micro_steps - kinds + dropped);
  }
}

// A profile of memory shows the allocations of its steps.
TEST(RecordedSteps, AreNotRecordedWhileMemoryIs) {
  RecordingCpu be;
  Arena arena = Arena::host();
  arena.record();
  const RunShape shape = recorded_shapes(DType::kF32)[0].shape;
  TrainState state(be, arena, shape);
  state.initialize(1);
  const std::vector<int32_t> ids(static_cast<size_t>(shape.tokens_per_step()), 3);
  for (int i = 1; i <= 3; ++i) {
    state.step({.tokens = ids, .targets = ids}, std::ssize(ids), kTestOptimizer, 1e-3, i);
    state.finish_step();
  }
  EXPECT_EQ(be.recorded, 0);
}

}  // namespace
}  // namespace tessera::testing
