// The static schedule of the sm_90 forward: every slice of every head exactly once, and evenly. Needs no GPU.
#include "kernels/attention/sm90/forward_schedule.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tests/kernels/bf16_problem.h"

namespace tessera::attention::sm90 {
namespace {

using testing::bf16_problem;

constexpr int kSliceRows = 64, kCtas = 132;
int slices_a_tile(const AttnProblem& p) { return p.head_dim <= 128 ? 3 : 2; }

// Counts what the CTAs do; returns the work of the busiest over the mean, a slice of keys of a tile being 1.
template <bool kCausal>
double walk_all(const AttnProblem& p, int most_ctas, std::vector<int>& times) {
  const ForwardSchedule schedule(p, kSliceRows, slices_a_tile(p), most_ctas);
  const int ctas = std::min(most_ctas, schedule.items());
  const int64_t slices = (p.tokens + kSliceRows - 1) / kSliceRows;
  times.assign(static_cast<size_t>(p.batch * p.heads * slices), 0);
  double busiest = 0, sum = 0;
  for (int cta = 0; cta < ctas; ++cta) {
    double work = 0;
    auto walk = schedule.begin(cta);
    for (int item; (item = schedule.next<kCausal>(walk, ctas)) >= 0;) {
      const QueryTile tile = schedule.tile<kCausal>(item);
      EXPECT_LE(tile.last_slice - tile.first_slice, slices_a_tile(p));
      EXPECT_EQ(tile.kv_head, tile.head / (p.heads / p.kv_heads));
      for (int slice = tile.first_slice; slice < tile.last_slice; ++slice) {
        ++times.at(static_cast<size_t>((tile.batch * p.heads + tile.head) * slices + slice));
      }
      work += kCausal ? tile.last_slice : static_cast<double>(slices);
    }
    busiest = std::max(busiest, work);
    sum += work;
  }
  return busiest * ctas / sum;
}

TEST(ForwardSchedule, TakesEverySliceOnce) {
  std::mt19937 random(1);
  const auto up_to = [&](int most) { return 1 + static_cast<int>(random() % static_cast<unsigned>(most)); };
  constexpr int kHeadDims[] = {64, 128, 8, 40, 256};
  std::vector<int> times;
  for (int i = 0; i < 300; ++i) {
    const int kv_heads = up_to(8);
    const AttnProblem p =
        bf16_problem(up_to(20), up_to(i % 3 ? 700 : 6000), kv_heads * up_to(4), kv_heads, kHeadDims[i % 5]);
    const int ctas = i % 4 ? kCtas : up_to(160);
    walk_all<false>(p, ctas, times);
    EXPECT_EQ(times, std::vector<int>(times.size(), 1)) << p.tokens << " tokens, full";
    walk_all<true>(p, ctas, times);
    EXPECT_EQ(times, std::vector<int>(times.size(), 1)) << p.tokens << " tokens, causal";
  }
}

TEST(ForwardSchedule, IsEven) {
  std::vector<int> times;
  EXPECT_LT(walk_all<true>(bf16_problem(64, 1024, 12, 12, 64), kCtas, times), 1.05);
  for (int head_dim : {64, 128, 256}) {
    for (int64_t tokens : {1024, 2048, 4096, 8192, 16384, 32768}) {
      const int64_t heads = 2048 / head_dim;
      EXPECT_LT(walk_all<true>(bf16_problem(32768 / tokens, tokens, heads, heads, head_dim), kCtas, times),
                1.10)
          << "head dim " << head_dim << ", " << tokens << " tokens";
    }
  }
}

TEST(ForwardSchedule, DividesExactly) {
  std::mt19937 random(1);
  for (int64_t divisor = 1; divisor < int64_t{1} << 31; divisor += 1 + divisor / 3) {
    for (int i = 0; i < 1000; ++i) {
      const int n = i < 100 ? 0x7fffffff - i : static_cast<int>(random() >> 1);
      ASSERT_EQ(Divisor(divisor).divide(n), n / divisor);
    }
  }
}

}  // namespace
}  // namespace tessera::attention::sm90
