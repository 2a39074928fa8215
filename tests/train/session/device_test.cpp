#include "train/session/device.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "kernels/base/check.h"
#include "tests/says.h"

namespace tessera::testing {
namespace {

struct CpuPeak : ::testing::Test {
  ~CpuPeak() override { unsetenv(kCpuPeakVariable); }
};

TEST_F(CpuPeak, IsMeasuredOrGiven) {
  const auto cpu = make_backend({.device = Device::kCpu});
  unsetenv(kCpuPeakVariable);
  EXPECT_GT(gemm_peak(*cpu), 1e8);
  setenv(kCpuPeakVariable, "0.25", 1);
  EXPECT_EQ(gemm_peak(*cpu), 0.25e12);
}

TEST_F(CpuPeak, IsANumberAboveZero) {
  const auto cpu = make_backend({.device = Device::kCpu});
  for (const char* wrong : {"", "0", "-1", "nan", "1 TFLOP/s", "fast"}) {
    setenv(kCpuPeakVariable, wrong, 1);
    try {
      gemm_peak(*cpu);
      ADD_FAILURE() << wrong;
    } catch (const Error& error) {
      EXPECT_TRUE(says(error.what(), {"TESSERA_CPU_PEAK", wrong, "TFLOP/s", "Unset it"}));
    }
  }
}

}  // namespace
}  // namespace tessera::testing
