// How operations on the CPU write the gradients of parameters: added to, or in the place of what was there;
// and the gradients of biases that a pass over something else sums.
#include "tests/kernels/formula.h"
#include "tests/says.h"

namespace tessera::testing {
namespace {

struct GradientWrites : ::testing::Test {
  HostTensors make;
  CpuStream cpu;

  // `op` with gradients of these shapes: over NaN without accumulate, it leaves what it adds to zeros.
  void expect_overwritten(std::vector<Shape> shapes,
                          const std::function<void(const std::vector<Tensor>&, bool)>& op) {
    std::vector<Tensor> zeros, poisoned;
    for (const Shape& shape : shapes)
      zeros.push_back(make.zeros(shape)), poisoned.push_back(make.poisoned(shape));
    op(zeros, true);
    op(poisoned, false);
    for (size_t i = 0; i < shapes.size(); ++i) expect_same_bits(poisoned[i], zeros[i], "gradient");
    op(zeros, true);  // twice as much, but for roundings
    for (size_t i = 0; i < shapes.size(); ++i) {
      Doubles twice = doubles(poisoned[i]);
      for (double& value : twice) value *= 2;
      expect_formula(zeros[i], twice, "added to");
    }
  }

  Doubles sum_of_rows(const Tensor& x, int64_t columns) {
    Doubles sum(static_cast<size_t>(columns));
    for (int64_t n = 0; n < x.shape[0]; ++n)
      for (int64_t c = 0; c < columns; ++c) sum[c] += static_cast<double>(floats(x)[n * x.shape[1] + c]);
    return sum;
  }
};

TEST_F(GradientWrites, OfALinearLayer) {
  const int64_t N = 37, C = 19, O = 23;
  const Tensor x = make.normal({N, C}), w = make.normal({O, C}), dy = make.normal({N, O}),
               u = make.normal({N, C}), dx = make.poisoned({N, C});
  for (const bool activation : {false, true})
    expect_overwritten({{O, C}, {O}, {C}}, [&](const std::vector<Tensor>& g, bool accumulate) {
      cpu.run(LinearBackward{.dy = dy,
                             .x = x,
                             .weight = w,
                             .dx = dx,
                             .dweight = g[0],
                             .dbias = g[1],
                             .dx_sum = g[2],
                             .pre_activation = activation ? u : Tensor{},
                             .accumulate = accumulate});
      if (accumulate) return;
      expect_formula(g[1], sum_of_rows(dy, O), "dbias");
      expect_formula(g[2], sum_of_rows(dx, C), "dx_sum");
    });
}

TEST_F(GradientWrites, OfTheFirstOutputsOfALinearLayer) {
  const int64_t N = 37, C = 5, O = 150;
  const Tensor x = make.normal({N, C}), w = make.normal({O, C}), dy = make.normal({N, O}),
               dx = make.poisoned({N, C}), dw = make.zeros({O, C});
  for (const int64_t first : {1, 64, 100, 149}) {
    const Tensor db = make.zeros({first});
    cpu.run(LinearBackward{.dy = dy, .x = x, .weight = w, .dx = dx, .dweight = dw, .dbias = db});
    expect_formula(db, sum_of_rows(dy, first), "dbias");
  }
  EXPECT_TRUE(says(
      refusal_of(cpu,
                 LinearBackward{
                     .dy = dy, .x = x, .weight = w, .dx = dx, .dweight = dw, .dbias = make.zeros({O + 1})}),
      {"linear backward: dbias ", "fp32 [150]", "found fp32 [151]"}));
}

TEST_F(GradientWrites, OfNorms) {
  const int64_t N = 37, C = 19;
  const Tensor x = make.normal({N, C}), w = make.normal({C}), dy = make.normal({N, C}),
               mean = make.normal({N}), rstd = make.normal({N}), residual = make.normal({N, C});
  for (const bool adds : {false, true}) {
    const Tensor dx = make.poisoned({N, C}), add = adds ? residual : Tensor{};
    expect_overwritten({{C}, {C}, {C}}, [&](const std::vector<Tensor>& g, bool accumulate) {
      cpu.run(LayerNormBackward{.dy = dy,
                                .x = x,
                                .weight = w,
                                .mean = mean,
                                .rstd = rstd,
                                .dx = dx,
                                .dweight = g[0],
                                .dbias = g[1],
                                .add = add,
                                .dx_sum = g[2],
                                .accumulate = accumulate});
      if (!accumulate) expect_formula(g[2], sum_of_rows(dx, C), "LayerNorm's dx_sum");
    });
    expect_overwritten({{C}, {C}}, [&](const std::vector<Tensor>& g, bool accumulate) {
      cpu.run(RmsNormBackward{.dy = dy,
                              .x = x,
                              .weight = w,
                              .rstd = rstd,
                              .dx = dx,
                              .dweight = g[0],
                              .add = add,
                              .dx_sum = g[1],
                              .accumulate = accumulate});
      if (!accumulate) expect_formula(g[1], sum_of_rows(dx, C), "RMSNorm's dx_sum");
    });
  }
}

TEST_F(GradientWrites, OfQkNormAndOfAnAdapter) {
  const int64_t B = 2, T = 5, H = 3, D = 6, N = B * T;
  const Tensor heads = make.normal({B, T, H, D}), d = make.normal({B, T, H, D}), w = make.normal({D}),
               rstd = make.normal({N, H}), angles = make.normal({T, D / 2, 2}),
               dx = make.poisoned({B, T, H, D});
  expect_overwritten({{D}, {D}}, [&](const std::vector<Tensor>& g, bool accumulate) {
    cpu.run(RotaryBackward{.dy = {d, 0, H},
                           .dx = {dx, 0, H},
                           .query_heads = 2,
                           .angles = angles,
                           .x = {heads, 0, H},
                           .q_weight = w,
                           .k_weight = w,
                           .rstd = rstd,
                           .dq_weight = g[0],
                           .dk_weight = g[1],
                           .accumulate = accumulate});
  });
  const Tensor all = make.normal({H * D}), of_rows = make.normal({N});
  expect_overwritten({{H * D}}, [&](const std::vector<Tensor>& g, bool accumulate) {
    cpu.run(HeadsNormBackward{.dy = {d, 0, H},
                              .x = {heads, 0, H},
                              .weight = all,
                              .rstd = of_rows,
                              .dx = {dx, 0, H},
                              .dweight = g[0],
                              .accumulate = accumulate});
  });
  const int64_t C = 7, O = 12, r = 2;
  const Tensor x = make.normal({N, C}), dy = make.normal({N, O}), a = make.normal({2 * r, C}),
               b = make.normal({O, r}), u = make.normal({N, 2 * r}), dx_of_adapter = make.poisoned({N, C});
  expect_overwritten({{2 * r, C}, {O, r}}, [&](const std::vector<Tensor>& g, bool accumulate) {
    cpu.run(LoraBackward{.dy = dy,
                         .x = x,
                         .a = a,
                         .b = b,
                         .parts = {8, 4, 0},
                         .scale = 0.5f,
                         .u = make.copy_of(u),
                         .dx = dx_of_adapter,
                         .da = g[0],
                         .db = g[1],
                         .accumulate = accumulate});
  });
}

}  // namespace
}  // namespace tessera::testing
