// Waiting for the memory of programs that have ended, and what is said of others.
#include "train/session/gpu_users.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

struct Readings {
  std::vector<GpuUse> uses;  // the last one stays
  int pauses = 0;

  GpuUse settled() {
    return settled_use([&] { return uses[std::min<size_t>(static_cast<size_t>(pauses), uses.size() - 1)]; },
                       [&] { ++pauses; });
  }
};

GpuUse use(int64_t used, std::vector<GpuUse::Process> others = {}) {
  return {.total = 80 * kGiB, .used = used, .others = std::move(others)};
}

TEST(GpuUsers, WaitsUntilTheMemoryOfAnEndedProgramIsBack) {
  Readings readings{{use(62 * kGiB), use(62 * kGiB), use(40 * kGiB), use(3 * kGiB), use(kGiB / 2)}};
  EXPECT_EQ(readings.settled().used, kGiB / 2);
  EXPECT_EQ(readings.pauses, 4);
  EXPECT_EQ(readings.settled().text_of_others(), "");
}

TEST(GpuUsers, DoesNotWaitForThoseWhoLive) {
  Readings readings{{use(62 * kGiB, {{42, "python3", 61 * kGiB}, {7, "Xorg", kGiB / 8}})}};
  EXPECT_EQ(readings.settled().text_of_others(),
            "other programs hold memory of this GPU: python3 (pid 42) 61.0 GiB");
  EXPECT_EQ(readings.pauses, 0);
  // The driver may not say how much one of them holds: it may be all of it.
  readings.uses = {use(62 * kGiB, {{42, "python3", 0}})};
  EXPECT_EQ(readings.settled().text_of_others(), "other programs hold memory of this GPU: python3 (pid 42)");
  EXPECT_EQ(readings.pauses, 0);
}

TEST(GpuUsers, GivesUpWhereNothingChanges) {
  Readings readings{{use(62 * kGiB)}};
  EXPECT_EQ(readings.settled().text_of_others(),
            "other programs hold memory of this GPU: programs that cannot be seen from here 62.0 GiB");
  EXPECT_EQ(readings.pauses * kUsePause, 5);
  readings = {};
  for (int i = 0; i < 1000; ++i) readings.uses.push_back(use(62 * kGiB - i));
  readings.settled();
  EXPECT_EQ(readings.pauses * kUsePause, 20);
}

}  // namespace
}  // namespace tessera
