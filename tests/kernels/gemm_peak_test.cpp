#include <gtest/gtest.h>

#include "kernels/gemm/peak.h"
#include "tests/support.h"

namespace tessera::testing {
namespace {

TEST(GemmPeak, IsAPlausibleNumber) {
  const CpuStream cpu;
  Arena arena = Arena::host();
  for (const bool fp8 : {false, true}) {
    const double flops = measure_gemm_flops(cpu, arena, fp8);
    EXPECT_GT(flops, 1e8);
    EXPECT_LT(flops, 1e14);
    EXPECT_EQ(arena.ledger().current_bytes(), 0);
  }
}

}  // namespace
}  // namespace tessera::testing
