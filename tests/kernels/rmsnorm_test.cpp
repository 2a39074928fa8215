// RMSNorm on the CPU against its formula in fp64.
#include "tests/kernels/formula.h"
#include "tests/says.h"

namespace tessera::testing {
namespace {

constexpr float kEpsilon = 1e-5f;

struct RmsNorm : ::testing::Test {
  HostTensors make;
  CpuStream cpu;
};

struct RmsNormFormula {
  Doubles y, rstd, dx, dweight;
};
RmsNormFormula formula(const Tensor& x, const Tensor& weight, const Tensor& dy, double offset) {
  const size_t N = static_cast<size_t>(x.shape[0]), C = static_cast<size_t>(x.shape[1]);
  const Doubles xs = doubles(x), dys = doubles(dy);
  Doubles w = doubles(weight);
  for (double& one : w) one += offset;
  RmsNormFormula f{Doubles(N * C), Doubles(N), Doubles(N * C), Doubles(C)};
  for (size_t n = 0; n < N; ++n) {
    double squares = 0, sum_gh = 0;
    for (size_t c = 0; c < C; ++c) squares += xs[n * C + c] * xs[n * C + c];
    const double rstd = f.rstd[n] =
        1 / std::sqrt(squares / static_cast<double>(C) + static_cast<double>(kEpsilon));
    for (size_t c = 0; c < C; ++c) {
      const size_t i = n * C + c;
      f.y[i] = xs[i] * rstd * w[c];
      f.dweight[c] += dys[i] * xs[i] * rstd;
      sum_gh += dys[i] * w[c] * xs[i] * rstd;
    }
    for (size_t c = 0; c < C; ++c) {
      const size_t i = n * C + c;
      f.dx[i] = rstd * (dys[i] * w[c] - xs[i] * rstd * sum_gh / static_cast<double>(C));
    }
  }
  return f;
}

Doubles plus(const Tensor& a, Doubles b) {
  for (size_t i = 0; i < b.size(); ++i) b[i] += static_cast<double>(floats(a)[i]);
  return b;
}

TEST_F(RmsNorm, IsItsFormula) {
  const std::pair<int64_t, int64_t> sizes[] = {{1, 3}, {3, 5}, {7, 13}, {65, 257}, {130, 100}, {2, 1031}};
  for (const auto& [N, C] : sizes) {
    SCOPED_TRACE(fmt::format("N {} C {}", N, C));
    const Tensor x = make.normal({N, C}, 2, 1), weight = make.normal({C}, 0.5, 1), dy = make.normal({N, C});
    const float offset = N % 2 == 1 ? 0.0f : 1.0f;
    const RmsNormFormula want = formula(x, weight, dy, static_cast<double>(offset));
    const Tensor y = make.poisoned({N, C}), rstd = make.poisoned({N});
    RmsNormForward forward{
        .x = x, .weight = weight, .y = y, .rstd = rstd, .epsilon = kEpsilon, .offset = offset};
    cpu.run(forward);
    expect_formula(y, want.y, "y");
    expect_formula(rstd, want.rstd, "rstd");

    const Tensor before = make.normal({C}), residual = make.normal({N, C});
    forward.add = residual;
    cpu.run(forward);
    expect_formula(y, plus(residual, want.y), "y with a residual");
    enum { kNoAdd, kAdd, kAddInPlace, kOverDy };
    for (const int variant : {kNoAdd, kAdd, kAddInPlace, kOverDy}) {
      SCOPED_TRACE(variant);
      const Tensor dweight = make.copy_of(before), d = make.copy_of(dy), add = make.copy_of(residual);
      const Tensor dx = variant == kAddInPlace ? add : variant == kOverDy ? d : make.poisoned({N, C});
      const bool adds = variant == kAdd || variant == kAddInPlace;
      cpu.run(RmsNormBackward{.dy = d,
                              .x = x,
                              .weight = weight,
                              .rstd = rstd,
                              .offset = offset,
                              .dx = dx,
                              .dweight = dweight,
                              .add = adds ? add : Tensor{}});
      expect_formula(dx, adds ? plus(residual, want.dx) : want.dx, "dx");
      expect_formula(dweight, plus(before, want.dweight), "dweight");
    }
  }
}

TEST_F(RmsNorm, MatchesFiniteDifferences) {
  const int64_t N = 5, C = 13;
  const Tensor x = make.normal({N, C}, 2, 1), w = make.normal({C}), y = make.poisoned({N, C}),
               rstd = make.poisoned({N}), dy = make.normal({N, C});
  const auto loss = [&] {
    cpu.run(RmsNormForward{.x = x, .weight = w, .y = y, .rstd = rstd, .epsilon = kEpsilon});
    return dot(y, dy);
  };
  loss();
  const Tensor dx = make.poisoned({N, C}), dw = make.zeros({C});
  cpu.run(RmsNormBackward{.dy = dy, .x = x, .weight = w, .rstd = rstd, .dx = dx, .dweight = dw});
  expect_gradient(x, dx, loss);
  expect_gradient(w, dw, loss);
}

// The mean stays: a row of equal values becomes the weight, where LayerNorm gives 0. A row of zeros gives
// zeros.
TEST_F(RmsNorm, TakesNoMeanAndAddsEpsilonToTheMeanSquare) {
  const int64_t C = 6;
  const Tensor x = make.zeros({2, C}), weight = make.normal({C}), y = make.poisoned({2, C}),
               rstd = make.poisoned({2});
  for (size_t c = 0; c < 6; ++c) floats(x)[c] = 0.01f;
  for (const float epsilon : {1e-6f, 1e-4f, 1.0f}) {
    cpu.run(RmsNormForward{.x = x, .weight = weight, .y = y, .rstd = rstd, .epsilon = epsilon});
    const double wanted = 1 / std::sqrt(1e-4 + static_cast<double>(epsilon));
    EXPECT_NEAR(floats(rstd)[0] / wanted, 1, 1e-6);
    EXPECT_NEAR(floats(rstd)[1] * std::sqrt(static_cast<double>(epsilon)), 1, 1e-6);
    for (size_t c = 0; c < 6; ++c) {
      EXPECT_NEAR(floats(y)[c], 0.01 * wanted * floats(weight)[c], 1e-6);
      EXPECT_EQ(floats(y)[6 + c], 0);
    }
  }
}

// The bits of the same channels as rows of their own; other heads stay as they are.
TEST_F(RmsNorm, OfHeadsIsThatOfTheirChannels) {
  struct Case {
    int64_t B, T, D, heads_of_x, first_of_x, heads_of_y, first_of_y, count;
  };
  for (const Case& c : {Case{1, 1, 3, 1, 0, 1, 0, 1}, {2, 7, 6, 5, 0, 4, 1, 3}, {3, 5, 9, 8, 2, 6, 0, 5}}) {
    const int64_t N = c.B * c.T, C = c.count * c.D;
    SCOPED_TRACE(fmt::format("N {} C {}", N, C));
    const Heads x{make.normal({c.B, c.T, c.heads_of_x, c.D}), c.first_of_x, c.count};
    const auto rows_of_heads = [&](const Heads& heads) {
      const Tensor rows = make.poisoned({N, C});
      cpu.run(MoveHeads{.from = heads, .to = all_heads(rows.view({c.B, c.T, c.count, c.D}))});
      return rows;
    };
    const Tensor weight = make.normal({C}), rstd = make.poisoned({N}), row_rstd = make.poisoned({N}),
                 rows = make.poisoned({N, C}), before = make.normal({c.B, c.T, c.heads_of_y, c.D});
    const Heads y{make.copy_of(before), c.first_of_y, c.count};
    cpu.run(
        HeadsNormForward{.x = x, .y = y, .weight = weight, .rstd = rstd, .epsilon = kEpsilon, .offset = 1});
    cpu.run(RmsNormForward{.x = rows_of_heads(x),
                           .weight = weight,
                           .y = rows,
                           .rstd = row_rstd,
                           .epsilon = kEpsilon,
                           .offset = 1});
    expect_same_bits(rows_of_heads(y), rows, "y");
    expect_same_bits(rstd, row_rstd, "rstd");
    for (size_t i = 0; i < floats(before).size(); ++i) {
      const int64_t head = static_cast<int64_t>(i) / c.D % c.heads_of_y;
      if (head < y.first || head >= y.first + y.count) {
        EXPECT_EQ(floats(y.tensor)[i], floats(before)[i]);
      }
    }

    const Heads dy{make.normal({c.B, c.T, c.heads_of_y, c.D}), c.first_of_y, c.count};
    const Tensor d_rows = rows_of_heads(dy), dweight = make.normal({C}), row_dweight = make.copy_of(dweight);
    cpu.run(HeadsNormBackward{
        .dy = dy, .x = x, .weight = weight, .rstd = rstd, .offset = 1, .dx = dy, .dweight = dweight});
    cpu.run(RmsNormBackward{.dy = d_rows,
                            .x = rows_of_heads(x),
                            .weight = weight,
                            .rstd = rstd,
                            .offset = 1,
                            .dx = d_rows,
                            .dweight = row_dweight});
    expect_same_bits(rows_of_heads(dy), d_rows, "dx");
    expect_same_bits(dweight, row_dweight, "dweight");
  }
}

TEST_F(RmsNorm, RefusesWhatDoesNotFit) {
  const Tensor x = make.normal({4, 6}), weight = make.normal({6}), y = make.zeros({4, 6}),
               rstd = make.zeros({4});
  EXPECT_TRUE(
      says(refusal_of(cpu, RmsNormForward{.x = x, .weight = weight, .y = y, .rstd = rstd, .epsilon = 0}),
           {"rmsnorm forward: epsilon ", "above 0", "found 0"}));
  EXPECT_TRUE(
      says(refusal_of(cpu, RmsNormForward{.x = x, .weight = rstd, .y = y, .rstd = rstd, .epsilon = kEpsilon}),
           {"rmsnorm forward: weight ", "fp32 [6] on cpu", "found fp32 [4]"}));
  EXPECT_TRUE(says(
      refusal_of(
          cpu,
          RmsNormBackward{
              .dy = y, .x = x, .weight = weight, .rstd = rstd, .dx = y, .dweight = weight, .add = weight}),
      {"rmsnorm backward: add ", "fp32 [4, 6] on cpu", "found fp32 [6]"}));
  const Heads heads{make.normal({2, 2, 3, 4}), 0, 2};
  const auto refused_heads = [&](const Heads& to, const Tensor& gain) {
    return refusal_of(
        cpu, HeadsNormForward{.x = heads, .y = to, .weight = gain, .rstd = rstd, .epsilon = kEpsilon});
  };
  const Heads other{make.zeros({2, 2, 2, 4}), 0, 2};
  EXPECT_TRUE(says(refused_heads(other, weight),
                   {"rmsnorm of heads forward: weight ", "fp32 [8] on cpu", "found fp32 [6]"}));
  EXPECT_TRUE(says(refused_heads({heads.tensor, 1, 2}, make.zeros({8})), {"y may not be x"}));
}

}  // namespace
}  // namespace tessera::testing
