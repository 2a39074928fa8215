// The ladder as data: who serves what, and formulas of traffic against counting. Needs no device.
#include "train/bench/ladder.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/attn_mask.h"

namespace tessera::attention {
namespace {

AttnProblem problem(int64_t tokens, bool causal, AttnDtype dtype = ATTN_BF16, int64_t kv_heads = 4) {
  return {.struct_size = sizeof(AttnProblem),
          .dtype = dtype,
          .batch = 2,
          .tokens = tokens,
          .kv_tokens = tokens,
          .heads = 4,
          .kv_heads = kv_heads,
          .head_dim = 64,
          .mask = tessera::test::attn_mask(causal),
          .scale = 0.125f,
          .dropout = {}};
}
constexpr double kQ = 2 * 4 * 64 * 2;  // bytes a token of Q in problem()

TEST(Ladder, HasSevenRungsWithNamesOfTheirOwn) {
  std::set<std::string> names;
  for (const Rung& rung : ladder()) names.insert(rung.name);
  EXPECT_EQ(names, (std::set<std::string>{"naive", "row", "tiled", "tensor_cores", "hopper", "hopper_fp8",
                                          "mixture"}));
}

TEST(Ladder, SaysWhatItDoesNotServe) {
  const DeviceTraits cpu{}, ampere{Device::kCuda, 80, "A100"}, hopper{Device::kCuda, 90, "H200"};
  for (const Rung& rung : ladder()) {
    const std::string name = rung.name;
    const AttnDtype dtype = attn_dtype(rung.dtype());
    const std::string served = rung.family && !rung.family->built() ? "not built" : "";
    const std::string fine = name == "mixture" ? "choice of blocks" : served;
    EXPECT_EQ(rung.why_not(problem(100, true, dtype), cpu), "needs a GPU");
    EXPECT_EQ(rung.why_not(problem(100, true, dtype), ampere), name == "hopper"       ? "needs sm90"
                                                               : name == "hopper_fp8" ? "needs sm90 in FP8"
                                                                                      : fine)
        << name;
    const AttnProblem grouped = problem(100, true, dtype, 2), long_one = problem(100'000, true, dtype);
    EXPECT_EQ(rung.why_not(grouped, hopper), fine) << name;
    EXPECT_EQ(rung.why_not(long_one, hopper), name == "row" ? "too long" : fine) << name;
    AttnProblem chosen = problem(100, true, dtype);
    chosen.mask.choice = {.size = 64, .count = 2};
    if (rung.family) {
      EXPECT_EQ(rung.why_not(chosen, hopper), name == "mixture" ? served : "choice of blocks") << name;
    }
    AttnProblem odd = problem(100, true, dtype);
    odd.head_dim = 44;
    EXPECT_EQ(rung.why_not(odd, hopper), name == "naive" ? "" : "head dim") << name;
  }
}

// Every query row of every head, one by one
double pairs(const AttnProblem& p) {
  double count = 0;
  for (int64_t i = 0; i < p.tokens; ++i) count += static_cast<double>(p.mask.causal ? i + 1 : p.tokens);
  return count * static_cast<double>(p.batch * p.heads);
}

TEST(Traffic, OfARowIsWhatItsLoopsLoad) {
  for (const bool causal : {true, false}) {
    const AttnProblem p = problem(37, causal);
    const double n = 37, rows = 2 * 4 * n;
    const Traffic forward = fused_forward_traffic(p, 1), backward = row_backward_traffic(p);
    EXPECT_DOUBLE_EQ(forward.loaded, n * kQ + pairs(p) * 2 * 128);
    EXPECT_DOUBLE_EQ(forward.read, 3 * n * kQ);
    EXPECT_DOUBLE_EQ(forward.written, n * kQ + 4 * rows);
    EXPECT_DOUBLE_EQ(backward.loaded,
                     3 * n * kQ + 4 * rows + pairs(p) * 256 + 2 * n * kQ + pairs(p) * (256 + 8));
    EXPECT_DOUBLE_EQ(backward.stored, 3 * n * kQ + 4 * rows);
  }
}

TEST(Traffic, OfTilesIsLessByTheirRows) {
  for (const bool causal : {true, false}) {
    const AttnProblem p = problem(4096, causal);
    const double by_row = fused_forward_traffic(p, 1).loaded, by_tile = fused_forward_traffic(p, 128).loaded;
    EXPECT_NEAR(by_row / by_tile, 128, causal ? 8 : 3);
    EXPECT_EQ(fused_forward_traffic(p, 1).read, fused_forward_traffic(p, 128).read);
  }
  EXPECT_LT(tiled_backward_traffic(problem(4096, true), 64).loaded,
            row_backward_traffic(problem(4096, true)).loaded / 20);
}

TEST(Traffic, OfNaiveGrowsWithTheSquareAndOfTheOthersDoesNot) {
  for (const Rung& rung : ladder()) {
    const AttnDtype dtype = attn_dtype(rung.dtype());
    const auto growth = [&](auto&& traffic) {
      const Traffic small = traffic(problem(4096, false, dtype)),
                    large = traffic(problem(8192, false, dtype));
      return (large.read + large.written) / (small.read + small.written);
    };
    const double forward = growth([&](const AttnProblem& p) { return rung.forward_traffic(p, kHopper); });
    const double backward = growth([&](const AttnProblem& p) { return rung.backward_traffic(p, kHopper); });
    const bool naive = std::string(rung.name) == "naive";
    EXPECT_NEAR(forward, naive ? 4 : 2, naive ? 0.1 : 1e-9) << rung.name;
    EXPECT_NEAR(backward, naive ? 4 : 2, naive ? 0.1 : 0.01) << rung.name;
  }
}

// Heads of K and V that are read once for each query head, and added to: a product beside the first costs
// what it reads and writes of them.
TEST(Traffic, OfNaiveReadsKeysOnceForEachQueryHead) {
  const AttnProblem own = problem(256, false), shared = problem(256, false, ATTN_BF16, 1);
  const double dk = 256 * kQ / 4;  // K, V, dK and dV of the one head
  EXPECT_DOUBLE_EQ(naive_forward_traffic(shared).read, naive_forward_traffic(own).read);
  EXPECT_DOUBLE_EQ(naive_backward_traffic(shared).read, naive_backward_traffic(own).read + 2 * 3 * dk);
  EXPECT_DOUBLE_EQ(naive_backward_traffic(shared).written, naive_backward_traffic(own).written);
}

TEST(Traffic, SumsOfDqArePassedOnFromBlockToBlock) {
  // Of eight key blocks the first only stores the fp32 sums of dQ, the last only loads them.
  const auto passed_on = [](int64_t tokens) {
    const Traffic blocks = tensor_core_backward_traffic(problem(tokens, false), 128, 1);
    const Traffic one_block =
        tensor_core_backward_traffic(problem(tokens, false), static_cast<int>(tokens), 1);
    return blocks.stored - one_block.stored;
  };
  EXPECT_DOUBLE_EQ(passed_on(1024), 7 * 1024 * kQ * 2);
  EXPECT_DOUBLE_EQ(passed_on(128), 0);
  EXPECT_DOUBLE_EQ(tensor_core_backward_traffic(problem(100, false), 128, 1).stored,
                   100 * kQ * 3 + 2 * 4 * 800);
}

// Four query heads that share their keys, as works of all, of two and of one: dK and dV in fp32 pass from
// each work to the next, and K and V are loaded for each.
TEST(Traffic, OfFewerHeadsAWorkPassesSumsOfKeysOn) {
  const AttnProblem p = problem(1024, true, ATTN_BF16, 1);
  const Traffic all = tensor_core_backward_traffic(p, 128, 4);
  const double dk = 1024 * kQ / 4, sums = 2 * 2 * dk;  // dK in bf16; dK and dV in fp32
  for (const int works : {2, 4}) {
    const Traffic t = tensor_core_backward_traffic(p, 128, 4 / works);
    EXPECT_DOUBLE_EQ(t.stored - all.stored, (works - 1) * sums);
    EXPECT_DOUBLE_EQ(t.loaded - all.loaded, (works - 1) * (sums + 2 * dk));
    EXPECT_DOUBLE_EQ(t.written - all.written, sums);
    EXPECT_DOUBLE_EQ(t.read, all.read);
  }
}

}  // namespace
}  // namespace tessera::attention
