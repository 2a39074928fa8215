// The logits and the loss in one (HeadLoss, HeadGradient) on the CPU, against separate operations.
#include <cmath>

#include "tests/support.h"
#include "tests/tolerances.h"

namespace tessera::testing {
namespace {

struct Results {
  Tensor losses, dx, dweight;
};

class HeadLossTest : public ::testing::Test {
 protected:
  static constexpr int64_t kRows = 23, kChannels = 40, kVocab = 203, kPadded = 256;

  Results separate(const Tensor& scale, bool accumulate) {
    const Results r = fresh();
    const Tensor logits = make.poisoned({kRows, kPadded});
    cpu.run(LinearForward{.x = x, .weight = weight, .y = logits});
    cpu.run(CrossEntropy{.logits = logits,
                         .targets = targets,
                         .losses = r.losses,
                         .vocab_size = kVocab,
                         .want_gradient = true,
                         .gradient_scale = scale,
                         .weights = weights,
                         .z_loss = z_loss});
    cpu.run(LinearBackward{.dy = logits,
                           .x = r.dx,
                           .weight = weight,
                           .dx = r.dx,
                           .dweight = r.dweight,
                           .accumulate = accumulate});
    return r;
  }
  Results fused(const Tensor& scale, bool accumulate) {
    const Results r = fresh();
    const Tensor e = make.poisoned({kRows, kPadded}), scaled = make.poisoned({kRows, kChannels}),
                 factors = make.poisoned({2, kRows}),
                 sums = make.poisoned({(kPadded + HeadLoss::kSumColumns - 1) / HeadLoss::kSumColumns, kRows});
    cpu.run(HeadLoss{.x = r.dx,
                     .weight = weight,
                     .targets = targets,
                     .gradient_scale = scale,
                     .weights = weights,
                     .z_loss = z_loss,
                     .vocab_size = kVocab,
                     .e = e,
                     .losses = r.losses,
                     .scaled_x = scaled,
                     .factors = factors,
                     .sums = sums});
    cpu.run(LinearBackward{.dy = e,
                           .x = scaled,
                           .weight = weight,
                           .dx = scaled,
                           .dweight = r.dweight,
                           .accumulate = accumulate});
    cpu.run(HeadGradient{.x = r.dx,
                         .product = scaled,
                         .targets = targets,
                         .factors = factors,
                         .weight = weight,
                         .dweight = r.dweight});
    return r;
  }
  Results fresh() { return {make.poisoned({kRows}), make.copy_of(x), make.copy_of(gradient)}; }
  static void expect_near(const Tensor& found, const Tensor& want, const char* what) {
    double squares = 0;
    for (int64_t i = 0; i < want.numel(); ++i)
      squares += static_cast<double>(floats(want)[i]) * floats(want)[i];
    const double rms = std::sqrt(squares / static_cast<double>(want.numel()));
    for (int64_t i = 0; i < want.numel(); ++i)
      ASSERT_NEAR(floats(found)[i], floats(want)[i],
                  tolerance::kCpuOperation * (std::abs(floats(want)[i]) + rms))
          << what << "[" << i << "]";
  }

  HostTensors make;
  CpuStream cpu;
  Tensor weights;  // of rows
  float z_loss = 0;
  const Tensor x = make.normal({kRows, kChannels}), weight = make.normal({kPadded, kChannels}, 0.3f),
               gradient = make.normal({kPadded, kChannels}), targets = make.tokens({kRows}, kVocab);
};

// Rows share targets, and some have none.
TEST_F(HeadLossTest, IsTheSeparateOperations) {
  targets.as<int32_t>()[3] = targets.as<int32_t>()[4] = targets.as<int32_t>()[17] = kVocab - 1;
  for (const bool all : {true, false}) {
    if (!all) targets.as<int32_t>()[0] = targets.as<int32_t>()[9] = kNoTarget;
    for (const bool accumulate : {true, false})
      for (const Tensor& scale : {make.scalar(0.25f), Tensor{}}) {
        weights = accumulate ? Tensor{} : make.normal({kRows});
        z_loss = scale ? 0.01f : 0;
        const Results want = separate(scale, accumulate), found = fused(scale, accumulate);
        expect_near(found.losses, want.losses, "losses");
        expect_near(found.dx, want.dx, "dx");
        expect_near(found.dweight, want.dweight, "dweight");
      }
  }
  EXPECT_EQ(floats(fused({}, true).losses)[9], 0);
}

// With one channel a logit is one product, here exact: a power of two times a weight.
TEST_F(HeadLossTest, OfLargeVocabulariesIsThatOfItsFormula) {
  for (const int64_t V : {49'152, 151'936}) {
    const int64_t N = 3;
    const Tensor one = make.normal({N, 1}), table = make.normal({V, 1}),
                 ids = make.tokens({N}, static_cast<int32_t>(V)), e = make.poisoned({N, V}),
                 losses = make.poisoned({N}), factors = make.poisoned({2, N}), scaled = make.poisoned({N, 1}),
                 sums = make.poisoned({(V + HeadLoss::kSumColumns - 1) / HeadLoss::kSumColumns, N});
    for (int64_t n = 0; n < N; ++n) floats(one)[n] = std::ldexp(1.0f, static_cast<int>(n) - 1);
    cpu.run(HeadLoss{.x = one,
                     .weight = table,
                     .targets = ids,
                     .vocab_size = V,
                     .e = e,
                     .losses = losses,
                     .scaled_x = scaled,
                     .factors = factors,
                     .sums = sums});
    for (int64_t n = 0; n < N; ++n) {
      double sum = 0;
      const double target = static_cast<double>(floats(one)[n]) * floats(table)[ids.as<int32_t>()[n]];
      for (int64_t v = 0; v < V; ++v)
        sum += std::exp(static_cast<double>(floats(one)[n]) * floats(table)[v] - target);
      EXPECT_NEAR(floats(losses)[n], std::log(sum),
                  tolerance::kCpuLogSumExp + tolerance::kRoundingF32 * std::log(sum));
      EXPECT_NEAR(floats(factors)[n] * sum, 1, 2 * tolerance::kCpuLogSumExp);
      EXPECT_NEAR(floats(factors)[N + n], 1 / sum - 1, 2 * tolerance::kCpuLogSumExp);
    }
  }
}

TEST_F(HeadLossTest, HugeLogitsStayFinite) {
  for (int64_t i = 0; i < x.numel(); ++i) floats(x)[i] *= 1e4f;
  const Results r = fused(make.scalar(1e-5f), false);
  for (const Tensor& tensor : {r.losses, r.dx, r.dweight})
    for (int64_t i = 0; i < tensor.numel(); ++i) ASSERT_TRUE(std::isfinite(floats(tensor)[i]));
}

TEST_F(HeadLossTest, NanReachesLossAndGradients) {
  floats(x)[5 * kChannels + 7] = NAN;
  const Results r = fused({}, false);
  EXPECT_TRUE(std::isnan(floats(r.losses)[5]));
  EXPECT_TRUE(std::isnan(floats(r.dx)[5 * kChannels]));
  EXPECT_TRUE(std::isnan(floats(r.dweight)[0]));
  EXPECT_TRUE(std::isfinite(floats(r.losses)[6]));
}

}  // namespace
}  // namespace tessera::testing
