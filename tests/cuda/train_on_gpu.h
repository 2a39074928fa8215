// A fixture that runs the train program on a GPU, with a cache of timed products of its own.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>

#include "kernels/backend.h"
#include "tests/train_program.h"

namespace tessera::testing {

class TrainOnGpu : public TrainProgram {
 protected:
  using TrainProgram::TrainProgram;

  void SetUp() override {
    DeviceTraits device;
    std::string why_not;
    if (!find_cuda_device(device, why_not)) GTEST_SKIP() << "no GPU: " << why_not;
    setenv("XDG_CACHE_HOME", (folder / "cache").c_str(), 1);
  }
  void TearDown() override { unsetenv("XDG_CACHE_HOME"); }
};

}  // namespace tessera::testing
