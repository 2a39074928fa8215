// Copies beside the operations of a stream: what they copy, and what a queue that poisons makes visible.
#include <cmath>

#include "tests/support.h"

namespace tessera::testing {
namespace {

struct CopyQueues : ::testing::Test {
  HostTensors make;
  CpuStream cpu;
  Tensor from = make.normal({40}), values = make.copy_of(from), to = make.zeros({40});
  const Copy copy{.from = from, .to = to};
  std::unique_ptr<CopyQueue> queue(Poison poison) {
    return cpu.backend().make_copy_queue(cpu.queue(), poison);
  }
  static bool has(const Tensor& tensor, const Tensor& expected) {
    return std::memcmp(tensor.data, expected.data, tensor.bytes()) == 0;
  }
  static bool is_nan(const Tensor& tensor) {
    return std::ranges::all_of(floats(tensor), [](float value) { return std::isnan(value); });
  }
};

TEST_F(CopyQueues, CopyWhatTheOperationsBeforeHaveWritten) {
  const std::unique_ptr<CopyQueue> own = queue(Poison::kNo);
  const Tensor other = make.normal({7}), other_to = make.zeros({7});
  own->start(std::array{copy, Copy{.from = other, .to = other_to}});
  EXPECT_EQ(own->started(), 1);
  own->wait_for(1);
  EXPECT_TRUE(has(to, values) && has(from, values) && has(other_to, other));
}

TEST_F(CopyQueues, PoisonWhatIsHandedOver) {
  const std::unique_ptr<CopyQueue> own = queue(Poison::kYes);
  own->start(std::span(&copy, 1));
  EXPECT_TRUE(is_nan(from) && is_nan(to));
  own->wait_for(0);
  EXPECT_TRUE(is_nan(to));
  std::ranges::fill(floats(from), 1.0f);  // too early
  own->wait_for(own->started());
  EXPECT_TRUE(is_nan(from) && has(to, values));
  std::ranges::fill(floats(from), 1.0f);  // in time
  own->wait_for(own->started());
  EXPECT_EQ(floats(from)[0], 1.0f);
}

TEST_F(CopyQueues, RefuseTensorsThatDiffer) {
  const std::unique_ptr<CopyQueue> own = queue(Poison::kNo);
  for (const Tensor& other : {make.zeros({41}), make.empty({40}, DType::kI32), Tensor{}}) {
    const Copy bad{.from = from, .to = other};
    EXPECT_THROW(own->start(std::span(&bad, 1)), Error);
  }
}

}  // namespace
}  // namespace tessera::testing
