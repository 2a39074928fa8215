// A queue beside a stream: what its operations compute, and what faults a queue that poisons makes visible.
#include <cmath>

#include "tests/support.h"

namespace tessera::testing {
namespace {

struct SideQueues : ::testing::Test {
  HostTensors make;
  CpuStream cpu;
  Tensor from = make.normal({40}), values = make.copy_of(from), to = make.zeros({40});
  std::unique_ptr<SideQueue> queue(Poison poison) {
    return cpu.backend().make_side_queue(cpu.queue(), poison);
  }
  SideQueue::Operations copies() {
    return [this](const Launch& launch) { Stream(cpu.backend(), launch).run(Copy{from, to}); };
  }
  static bool has(const Tensor& tensor, const Tensor& expected) {
    return std::memcmp(tensor.data, expected.data, tensor.bytes()) == 0;
  }
  static bool is_nan(const Tensor& tensor) {
    return std::ranges::all_of(floats(tensor), [](float value) { return std::isnan(value); });
  }
};

TEST_F(SideQueues, RunOperations) {
  const std::unique_ptr<SideQueue> own = queue(Poison::kNo);
  own->start(to, copies());
  EXPECT_EQ(own->started(), 1);
  own->wait_for(1);
  EXPECT_TRUE(has(to, values));
}

TEST_F(SideQueues, PoisonWhatWillBeWritten) {
  const std::unique_ptr<SideQueue> own = queue(Poison::kYes);
  own->start(to, copies());
  EXPECT_TRUE(is_nan(to)) << "read too early";
  own->wait_for(0);
  EXPECT_TRUE(is_nan(to));
  std::ranges::fill(floats(to), 1.0f);  // too early: the operations overwrite it
  own->wait_for(own->started());
  EXPECT_TRUE(has(to, values));
  own->wait_for(own->started());
  EXPECT_TRUE(has(from, values));
}

TEST_F(SideQueues, RunStartsInTheirOrder) {
  const std::unique_ptr<SideQueue> own = queue(Poison::kYes);
  std::string order;
  for (const char name : {'a', 'b', 'c'}) own->start(to, [&order, name](const Launch&) { order += name; });
  own->wait_for(2);
  EXPECT_EQ(order, "ab");
  own->wait_for(3);
  EXPECT_EQ(order, "abc");
}

}  // namespace
}  // namespace tessera::testing
