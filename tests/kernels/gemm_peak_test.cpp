#include "kernels/gemm_peak.h"

#include <gtest/gtest.h>

#include "kernels/backend.h"

namespace tessera::testing {
namespace {

TEST(GemmPeak, IsAPlausibleNumber) {
  const std::unique_ptr<Backend> be = make_cpu_backend();
  Arena arena = Arena::host();
  const double flops = measure_gemm_flops(*be, arena);
  EXPECT_GT(flops, 1e8);
  EXPECT_LT(flops, 1e14);
  EXPECT_EQ(arena.ledger().current_bytes(), 0);
}

}  // namespace
}  // namespace tessera::testing
