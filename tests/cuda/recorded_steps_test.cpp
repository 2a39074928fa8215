// Training steps from CUDA graphs against steps whose operations are launched one by one, as an observer
// asks.
#include "tests/recorded_steps.h"

#include "tests/cuda/twin.h"

namespace tessera::testing {
namespace {

struct SilentRecorded final : OpObserver {
  void before(const AnyOp&, Backend&, const Launch&) override {}
  void after(const AnyOp&, Backend&, const Launch&) override { ++operations; }
  int operations = 0;
};

using CudaRecordedSteps = CudaTest;

TEST_F(CudaRecordedSteps, HaveTheBitsOfPlainLaunches) {
  for (const DType dtype : kReal)
    for (const NamedShape& named : recorded_shapes(dtype)) {
      SCOPED_TRACE(fmt::format("{} {}", name_of(dtype), named.name));
      HostTensors make;
      const std::unique_ptr<Backend> recording = make_cuda_backend(), plain = make_cuda_backend();
      SilentRecorded silent;
      plain->add_observer(silent);
      const StepsResult expected = varied_steps(*plain, named.shape, make);
      EXPECT_GT(silent.operations, 0);
      expect_same_bits(varied_steps(*recording, named.shape, make), expected);
    }
}

}  // namespace
}  // namespace tessera::testing
