// A fixture of tests that take several GPUs, a process for each.
#pragma once

#include "tests/data_parallel.h"

namespace tessera::testing {

class SeveralGpus : public ::testing::Test {
 protected:
  void SetUp() override {
    if (count_cuda_devices() < 2) GTEST_SKIP() << "needs at least 2 GPUs, found " << count_cuda_devices();
    std::string why_not;
    if (!can_communicate(Device::kCuda, why_not)) GTEST_SKIP() << why_not;
  }

  using Body = std::function<void(const Ranks&, const DeviceTraits&)>;
  static void on_gpus(int size, const Body& body) {
    on_ranks(size, [&](const Ranks& ranks) {
      use_cuda_device(ranks.rank);
      DeviceTraits device;
      std::string why_not;
      ASSERT_TRUE(find_cuda_device(device, why_not)) << why_not;
      body(ranks, device);
    });
  }
  // On 2 GPUs, and on 4 if there are as many.
  static void on_gpus(const Body& body) {
    for (const int size : {2, 4})
      if (size <= count_cuda_devices()) on_gpus(size, body);
  }
};

}  // namespace tessera::testing
