// How the work tiles of the attention backward on Hopper are cut, and what the sums of their keys take.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/attention/sm90/workspace.h"
#include "tests/kernels/bf16_problem.h"

namespace tessera::attention::sm90 {
namespace {

AttnProblem problem(int64_t batch, int64_t tokens, int64_t heads, int64_t kv_heads, int head_dim) {
  AttnProblem causal = testing::bf16_problem(batch, tokens, heads, kv_heads, head_dim);
  causal.mask.causal = 1;
  return causal;
}

int heads_per_work_tile(const AttnProblem& p) { return BackwardWorkspace::heads_per_work_tile(p); }

TEST(BackwardWorkspace, AWorkOfACausalMaskHasAboutAsManyStepsAsAreBest) {
  EXPECT_EQ(heads_per_work_tile(problem(4, 4096, 12, 12, 64)), 1);  // no head of keys is shared
  // Head dim 128: 5, 9, 17 steps a head
  EXPECT_EQ(heads_per_work_tile(problem(64, 512, 12, 2, 128)), 3);
  EXPECT_EQ(heads_per_work_tile(problem(32, 1024, 12, 2, 128)), 2);
  EXPECT_EQ(heads_per_work_tile(problem(16, 2048, 12, 2, 128)), 1);
  // Head dim 64: 4.5, 8.5, 16.5
  EXPECT_EQ(heads_per_work_tile(problem(32, 1024, 32, 8, 64)), 4);
  EXPECT_EQ(heads_per_work_tile(problem(8, 2048, 32, 8, 64)), 2);
  EXPECT_EQ(heads_per_work_tile(problem(4, 4096, 32, 8, 64)), 1);
  // Seven heads: one or all. 2.5, 4.5, 8.5 steps: too many cost more than too few
  EXPECT_EQ(heads_per_work_tile(problem(64, 512, 14, 2, 64)), 7);
  EXPECT_EQ(heads_per_work_tile(problem(32, 1024, 14, 2, 64)), 1);
  EXPECT_EQ(heads_per_work_tile(problem(16, 2048, 14, 2, 64)), 1);
  // So many work tiles that no CTA has to wait long for the last
  EXPECT_EQ(heads_per_work_tile(problem(16, 4096, 32, 8, 64)), 4);
}

TEST(BackwardWorkspace, FewWorksAreCutUntilTheyFillTheGpu) {
  EXPECT_EQ(heads_per_work_tile(problem(1, 1024, 12, 2, 128)), 1);  // 16 work tiles of all heads, 48 of two
  EXPECT_EQ(heads_per_work_tile(problem(4, 512, 12, 2, 128)), 2);   // 32 of all, 64 of three
  EXPECT_EQ(heads_per_work_tile(problem(8, 512, 12, 2, 128)), 3);
  AttnProblem full = problem(1, 4096, 12, 2, 128);
  full.mask.causal = false;
  EXPECT_EQ(heads_per_work_tile(full), 3);  // 64, 128
  full.batch = 2;
  EXPECT_EQ(heads_per_work_tile(full), 6);
}

TEST(BackwardWorkspace, AWorkOfAWindowHasAllHeadsUnlessItIsLong) {
  AttnProblem p = problem(4, 8192, 12, 2, 128);
  p.mask.window = 1024;
  EXPECT_EQ(heads_per_work_tile(p), 6);  // 16 steps a head
  p.mask.window = 4096;
  EXPECT_EQ(heads_per_work_tile(p), 1);  // 49
  p.head_dim = 64;
  EXPECT_EQ(heads_per_work_tile(p), 1);  // 25
  p.mask.window = 2048;
  EXPECT_EQ(heads_per_work_tile(p), 6);
  p.mask.window = 1 << 20;  // longer than the sequence
  EXPECT_EQ(heads_per_work_tile(p), 1);
}

TEST(BackwardWorkspace, WithinDocumentsAWorkHasOneHeadOrTwo) {
  AttnProblem p = problem(1, 32768, 12, 2, 128);
  const int32_t table = 0;
  p.mask.documents = &table;
  EXPECT_EQ(heads_per_work_tile(p), 1);
  p.head_dim = 64;
  EXPECT_EQ(heads_per_work_tile(p), 2);
  p.heads = 14;
  EXPECT_EQ(heads_per_work_tile(p), 1);
}

// dK and dV in fp32, and a counter for each warpgroup's part: only where work tiles share their keys
TEST(BackwardWorkspace, SumsOfKeysTakeWhatTheySay) {
  const AttnProblem shared = problem(1, 4096, 12, 2, 128), alone = problem(1, 4096, 2, 2, 128);
  std::vector<uint8_t> nowhere(1);
  const BackwardWorkspace a(nowhere.data(), shared), b(nowhere.data(), alone);
  ASSERT_NE(a.key_sums, nullptr);
  const auto end = static_cast<size_t>(reinterpret_cast<uint8_t*>(a.key_sums) - nowhere.data()) +
                   size_t{2} * 4096 * 128 * 2 * sizeof(float);
  EXPECT_EQ(a.bytes, end);
  EXPECT_EQ(a.key_counters + 2 * (4096 / 128) * 2, a.counters + a.counter_count);
  EXPECT_EQ(b.key_sums, nullptr);
  EXPECT_EQ(b.key_counters, nullptr);
}

}  // namespace
}  // namespace tessera::attention::sm90
