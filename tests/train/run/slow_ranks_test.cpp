// Ranks that are slower than the others are found and named once, with their machine.
#include "train/run/slow_ranks.h"

#include <csignal>

#include "tests/ranks_by_hand.h"

namespace tessera::testing {
namespace {

using Times = std::vector<double>;

TEST(SlowRanks, AreFoundAfterTwoWindowsAndToldOnce) {
  SlowRanks ranks;
  for (int64_t step = 1; step <= 10 * SlowRanks::kSteps; ++step) {
    const std::vector<SlowRanks::Slow> found = ranks.add(Times{0.1, 0.1, 0.125, 0.11});
    ASSERT_EQ(found.size(), step == 2 * SlowRanks::kSteps ? 1u : 0u) << step;
    if (found.empty()) continue;
    EXPECT_EQ(found[0].rank, 2);
    EXPECT_NEAR(found[0].seconds, 0.125, 1e-9);
    EXPECT_NEAR(found[0].median, 0.1, 1e-9);
  }
}

TEST(SlowRanks, AreNotThoseThatAreSlowForAWhileOrByLittle) {
  SlowRanks ranks;
  for (int64_t step = 0; step < 20 * SlowRanks::kSteps; ++step) {
    const double in_turn = step / SlowRanks::kSteps % 2 == 0 ? 0.2 : 0.1;
    EXPECT_TRUE(ranks.add(Times{0.1, in_turn, 0.118, 0.1}).empty()) << step;
  }
  SlowRanks short_steps;
  for (int64_t step = 0; step < 20 * SlowRanks::kSteps; ++step)
    EXPECT_TRUE(short_steps.add(Times{0.001, 0.005}).empty()) << step;
}

TEST(SlowRanks, OfTwoTheSlowerCountsBesideTheFaster) {
  SlowRanks ranks;
  int64_t told = 0;
  for (int64_t step = 0; step < 2 * SlowRanks::kSteps; ++step) told += std::ssize(ranks.add(Times{0.2, 0.1}));
  EXPECT_EQ(told, 1);
}

TEST(SlowRanks, TheWaitIsWhatTheMeanLacksOfTheSlowest) {
  EXPECT_DOUBLE_EQ(wait_for_slowest(Times{1, 1, 2}), 1 - 4.0 / 3 / 2);
  EXPECT_DOUBLE_EQ(wait_for_slowest(Times{3, 3}), 0);
  EXPECT_DOUBLE_EQ(wait_for_slowest(Times{0, 0}), 0);
}

// Rank 1 stands still half of the time.
TEST_F(RanksByHand, ASlowOneIsNamedOnce) {
  const Words words = sets({"train.steps=70", "train.time_limit=20", "train.tokens_per_step=2048",
                            "model.channels=128", "evaluation.every=0", "sampling.every=0"});
  start(0, words);
  start(1, words);
  while (!is_gone(processes[0].pid())) {
    processes[1].signal(SIGSTOP);
    std::this_thread::sleep_for(std::chrono::milliseconds(15));
    processes[1].signal(SIGCONT);
    std::this_thread::sleep_for(std::chrono::milliseconds(15));
  }
  const std::vector<ProcessResult> results = end();
  for (const ProcessResult& result : results) EXPECT_EQ(result.status, 0) << result.error;
  const std::string& out = results[0].out;
  const size_t at = out.find("rank 1 on ");
  ASSERT_NE(at, std::string::npos) << out;
  EXPECT_NE(out.find("is slow", at), std::string::npos) << out;
  EXPECT_EQ(out.find("rank 1 on ", at + 1), std::string::npos) << "told twice: " << out;
  EXPECT_EQ(out.find("rank 0 on "), std::string::npos) << out;
}

}  // namespace
}  // namespace tessera::testing
