#include <gtest/gtest.h>

#include "kernels/gemm/timing.h"
#include "tests/gemm_library.h"
#include "tests/support.h"

namespace tessera::testing {
namespace {

GemmChoice chosen(const std::vector<double>& milliseconds) {
  std::vector<GemmTime> times;
  for (const double ms : milliseconds) times.push_back({algorithm(static_cast<int>(times.size())), ms});
  return choose(times);
}

TEST(GemmTiming, TheFirstStaysUnlessAnotherIsFasterByMoreThanTheNoise) {
  EXPECT_EQ(chosen({1.0}).algorithm, algorithm(0));
  EXPECT_EQ(chosen({1.0, 0.995, 0.991}).algorithm, algorithm(0));
  EXPECT_EQ(chosen({1.0, 0.97, 0.98}).algorithm, algorithm(1));
  EXPECT_EQ(chosen({1.0, 2.0, 0.905, 0.9}).algorithm, algorithm(2)) << "the first of those that are equal";
  const GemmChoice choice = chosen({1.0, 2.0, 0.905, 0.9});
  EXPECT_EQ(choice.ms, 0.905);
  EXPECT_EQ(choice.first_ms, 1.0);
}

TEST(GemmTiming, FindsTheFastestAndSparesTheSlow) {
  const CpuStream cpu;
  Arena arena = Arena::host();
  FakeGemms library;
  library.milliseconds = {{1, 2.0}, {2, 6.0}, {3, 1.0}, {4, 1.02}};
  const std::vector<GemmTime> times = time_algorithms(library, cpu, arena, product(33, 50, 17, DType::kF32));
  ASSERT_EQ(times.size(), 4u);
  for (size_t i = 0; i < times.size(); ++i) {
    EXPECT_EQ(times[i].algorithm, algorithm(static_cast<int>(i) + 1));
    EXPECT_GE(times[i].ms, library.milliseconds[i].second);
  }
  EXPECT_NE(choose(times).algorithm, algorithm(1));
  EXPECT_NE(choose(times).algorithm, algorithm(2));
  EXPECT_LT(library.calls[2], library.calls[3]);
  EXPECT_GE(library.calls[1], library.calls[3]) << "the first is measured as often as the fastest";
  EXPECT_EQ(arena.ledger().current_bytes(), 0);
}

TEST(GemmTiming, AProductThatTheLibraryCannotComputeHasNoTimes) {
  const CpuStream cpu;
  Arena arena = Arena::host();
  FakeGemms library;
  library.milliseconds = {};
  EXPECT_TRUE(time_algorithms(library, cpu, arena, product(3, 5, 7, DType::kF32)).empty());
  EXPECT_EQ(arena.ledger().peak_bytes(), 0);
}

}  // namespace
}  // namespace tessera::testing
