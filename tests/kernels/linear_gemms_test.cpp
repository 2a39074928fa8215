// The products that operations on linear layers are made of, computed from their descriptions, against the
// operations on the CPU.
#include "kernels/gemm/linear_gemms.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support.h"
#include "tests/tolerances.h"

namespace tessera::testing {
namespace {

float at(const GemmMatrix& matrix, int64_t row, int64_t column) {
  const int64_t place = matrix.transposed ? column * matrix.ld + row : row * matrix.ld + column;
  return static_cast<const float*>(matrix.data)[place];
}

double gelu(double v) { return v * 0.5 * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v))); }

// By the formula in gemm.h
void compute(const Gemm& g) {
  const float* c = static_cast<const float*>(g.c ? g.c : g.d.data);
  for (int64_t i = 0; i < g.m; ++i)
    for (int64_t j = 0; j < g.n; ++j) {
      double sum = g.beta != 0 ? g.beta * static_cast<double>(c[i * g.d.ld + j]) : 0;
      for (int64_t p = 0; p < g.k; ++p) sum += g.alpha * static_cast<double>(at(g.a, i, p)) * at(g.b, p, j);
      const bool has_bias = adds_bias(g.epilogue);
      if (has_bias) sum += static_cast<const float*>(g.bias)[j];
      if (writes_aux(g.epilogue)) {
        static_cast<float*>(g.aux)[i * g.n + j] = static_cast<float>(sum);
        sum = gelu(sum);
      }
      static_cast<float*>(g.d.data)[i * g.d.ld + j] = static_cast<float>(sum);
    }
  for (int64_t i = 0; i < g.summed; ++i) {
    float& result = static_cast<float*>(g.sums)[i];
    double sum = g.beta != 0 ? g.beta * static_cast<double>(result) : 0;
    for (int64_t p = 0; p < g.k; ++p) sum += at(g.a, i, p);
    result = static_cast<float>(sum);
  }
}

struct LinearGemms : ::testing::Test {
  static constexpr int64_t N = 9, C = 7, O = 11;
  void expect_same(const Tensor& found, const Tensor& wanted) {
    EXPECT_LT(relative_error(found, wanted), tolerance::kCpuOperation);
  }
  CpuStream cpu;
  HostTensors make;
};

TEST_F(LinearGemms, ComputeALinearLayer) {
  const Tensor x = make.normal({N, C}), weight = make.normal({O, C}), bias = make.normal({O}),
               add = make.normal({N, O});
  for (const bool with_bias : {false, true})
    for (const bool with_add : {false, true})
      for (const bool activates : {false, true}) {
        SCOPED_TRACE(fmt::format("bias {} add {} activation {}", with_bias, with_add, activates));
        LinearForward op{.x = x, .weight = weight, .y = make.poisoned({N, O})};
        if (with_bias) op.bias = bias;
        LinearForward ours = op;
        ours.y = make.poisoned({N, O});
        for (LinearForward* one : {&op, &ours}) {
          if (activates) one->pre_activation = with_add ? make.copy_of(add) : make.poisoned({N, O});
          if (with_add) one->add = activates ? one->pre_activation : add;
        }
        cpu.run(op);
        const LinearForwardGemms gemms = gemms_of(ours);
        EXPECT_EQ(gemms.fuses_activation, activates && !with_add);
        compute(gemms.fused);
        expect_same(activates ? ours.pre_activation : ours.y, activates ? op.pre_activation : op.y);
        if (gemms.fuses_activation) expect_same(ours.y, op.y);
        if (with_bias) continue;              // the plain one leaves the bias to a pass of its own
        if (with_add && activates) continue;  // what it adds to is the sum by now
        compute(gemms.plain);
        expect_same(activates ? ours.pre_activation : ours.y, activates ? op.pre_activation : op.y);
      }
}

TEST_F(LinearGemms, ComputeItsGradients) {
  const Tensor dy = make.normal({N, O}), x = make.normal({N, C}), weight = make.normal({O, C}),
               dweight = make.normal({O, C}), dbias = make.normal({O - 2}), add = make.normal({N, C});
  struct Case {
    bool frozen, accumulate, adds;
  };
  for (const auto& [frozen, accumulate, adds] :
       {Case{false, true, false}, {false, false, false}, {false, true, true}, {true, true, true}}) {
    LinearBackward op{.dy = dy, .x = x, .weight = weight, .dx = make.poisoned({N, C})};
    if (adds) op.add = add;
    if (!frozen) op.dweight = make.copy_of(dweight), op.dbias = make.copy_of(dbias);
    op.accumulate = accumulate;
    LinearBackward ours = op;
    ours.dx = make.poisoned({N, C});
    if (!frozen) ours.dweight = make.copy_of(dweight), ours.dbias = make.copy_of(dbias);
    cpu.run(op);
    const LinearBackwardGemms gemms = gemms_of(ours);
    EXPECT_EQ(gemms.dweight.has_value(), !frozen);
    EXPECT_FALSE(gemms.fused_dx.has_value());
    if (gemms.dweight) compute(*gemms.dweight);
    compute(gemms.dx);
    expect_same(ours.dx, op.dx);
    if (!frozen) expect_same(ours.dweight, op.dweight), expect_same(ours.dbias, op.dbias);
  }
}

// The same bits, whether a gradient is added to zeros or overwrites what was there
TEST_F(LinearGemms, AGradientHasOneAlgorithmHoweverItIsWritten) {
  const Tensor dy = make.normal({N, O}), x = make.normal({N, C}), weight = make.normal({O, C});
  LinearBackward op{.dy = dy, .x = x, .weight = weight, .dx = x, .dweight = make.zeros({O, C})};
  const GemmKey adds = key_of(*gemms_of(op).dweight);
  op.accumulate = false;
  EXPECT_EQ(gemms_of(op).dweight->beta, 0);
  EXPECT_EQ(key_of(*gemms_of(op).dweight), adds);
  EXPECT_TRUE(adds.adds);
}

TEST_F(LinearGemms, FuseTheDerivativeOfAGeluInBf16Alone) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const Activation activation : {Activation::kGelu, Activation::kRelu, Activation::kRelu2}) {
      const Tensor in = make.empty({N, C}, dtype), out = make.empty({N, O}, dtype),
                   weight = make.empty({O, C}, dtype);
      const LinearBackwardGemms gemms = gemms_of(LinearBackward{
          .dy = out, .x = in, .weight = weight, .dx = in, .pre_activation = in, .activation = activation});
      const bool fuses = dtype == DType::kBF16 && activation == Activation::kGelu;
      ASSERT_EQ(gemms.fused_dx.has_value(), fuses);
      if (fuses) {
        EXPECT_EQ(gemms.fused_dx->epilogue, GemmEpilogue::kActivationBackward);
        EXPECT_EQ(gemms.fused_dx->aux, in.data);
      }
    }
}

TEST_F(LinearGemms, ComputeAnAdapter) {
  const int64_t r = 3;
  const LayerParts parts{5, 4, 2};  // of O
  const Tensor x = make.normal({N, C}), a = make.normal({3 * r, C}), b = make.normal({O, r}),
               add = make.normal({N, O});
  LoraForward op{.x = x,
                 .a = a,
                 .b = b,
                 .parts = parts,
                 .scale = 0.5f,
                 .u = make.poisoned({N, 3 * r}),
                 .y = make.poisoned({N, O}),
                 .add = add};
  LoraForward ours = op;
  ours.u = make.poisoned({N, 3 * r}), ours.y = make.poisoned({N, O});
  cpu.run(op);
  each_gemm(ours, compute);
  expect_same(ours.u, op.u);
  expect_same(ours.y, op.y);

  const Tensor dy = make.normal({N, O}), da = make.normal({3 * r, C}), db = make.normal({O, r});
  LoraBackward back{.dy = dy,
                    .x = x,
                    .a = a,
                    .b = b,
                    .parts = parts,
                    .scale = 0.5f,
                    .u = make.copy_of(op.u),
                    .dx = make.poisoned({N, C}),
                    .da = make.copy_of(da),
                    .db = make.copy_of(db)};
  LoraBackward mine = back;
  mine.u = make.copy_of(op.u), mine.dx = make.poisoned({N, C}), mine.da = make.copy_of(da),
  mine.db = make.copy_of(db);
  cpu.run(back);
  each_gemm(mine, compute);
  expect_same(mine.dx, back.dx);
  expect_same(mine.da, back.da);
  expect_same(mine.db, back.db);
}

}  // namespace
}  // namespace tessera::testing
