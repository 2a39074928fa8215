// SwiGLU on the CPU against its formula in fp64.
#include "tests/kernels/formula.h"
#include "tests/says.h"

namespace tessera::testing {
namespace {

struct Swiglu : ::testing::Test {
  HostTensors make;
  CpuStream cpu;
};

double sigmoid(double g) { return 1 / (1 + std::exp(-g)); }

struct SwigluFormula {
  Doubles y, d_gate_up;
};
SwigluFormula formula(const Tensor& gate_up, const Tensor& dy) {
  const size_t N = static_cast<size_t>(dy.shape[0]), F = static_cast<size_t>(dy.shape[1]);
  const Doubles x = doubles(gate_up), dys = doubles(dy);
  SwigluFormula f{Doubles(N * F), Doubles(N * 2 * F)};
  for (size_t n = 0; n < N; ++n)
    for (size_t i = 0; i < F; ++i) {
      const size_t gate = n * 2 * F + i, up = gate + F;
      const double s = sigmoid(x[gate]), d = dys[n * F + i];
      f.y[n * F + i] = x[gate] * s * x[up];
      f.d_gate_up[gate] = d * x[up] * s * (1 + x[gate] * (1 - s));
      f.d_gate_up[up] = d * x[gate] * s;
    }
  return f;
}

TEST_F(Swiglu, IsItsFormula) {
  const std::pair<int64_t, int64_t> sizes[] = {{1, 1}, {3, 5}, {7, 13}, {65, 257}, {130, 100}};
  for (const auto& [N, F] : sizes) {
    SCOPED_TRACE(fmt::format("N {} F {}", N, F));
    const Tensor gate_up = make.normal({N, 2 * F}, 3), dy = make.normal({N, F});
    const SwigluFormula want = formula(gate_up, dy);
    const Tensor y = make.poisoned({N, F}), apart = make.poisoned({N, 2 * F});
    cpu.run(SwigluForward{.gate_up = gate_up, .y = y});
    expect_formula(y, want.y, "y");
    cpu.run(SwigluBackward{.dy = dy, .gate_up = gate_up, .d_gate_up = apart});
    expect_formula(apart, want.d_gate_up, "d_gate_up");
    cpu.run(SwigluBackward{.dy = dy, .gate_up = gate_up, .d_gate_up = gate_up});
    expect_same_bits(gate_up, apart, "in place");
  }
}

TEST_F(Swiglu, MatchesFiniteDifferences) {
  const Tensor gate_up = make.normal({5, 18}), y = make.poisoned({5, 9}), dy = make.normal({5, 9}),
               d_gate_up = make.poisoned({5, 18});
  const auto loss = [&] {
    cpu.run(SwigluForward{.gate_up = gate_up, .y = y});
    return dot(y, dy);
  };
  cpu.run(SwigluBackward{.dy = dy, .gate_up = gate_up, .d_gate_up = d_gate_up});
  expect_gradient(gate_up, d_gate_up, loss);
}

// exp(-gate) overflows below -88: silu is then 0, not NaN. NaN stays NaN.
TEST_F(Swiglu, HoldsAtTheEnds) {
  constexpr float kGates[] = {-1e4f, -100, -88.8f, -88, -20, 0, 20, 88, 100, 1e4f};
  constexpr size_t F = std::size(kGates);
  const Tensor gate_up = make.empty({1, 2 * F}), dy = make.empty({1, F}), y = make.poisoned({1, F}),
               d_gate_up = make.poisoned({1, 2 * F});
  for (size_t i = 0; i < F; ++i) floats(gate_up)[i] = kGates[i], floats(gate_up)[F + i] = floats(dy)[i] = 1;
  cpu.run(SwigluForward{.gate_up = gate_up, .y = y});
  cpu.run(SwigluBackward{.dy = dy, .gate_up = gate_up, .d_gate_up = d_gate_up});
  for (size_t i = 0; i < F; ++i) {
    const double g = static_cast<double>(kGates[i]), s = sigmoid(g);
    const double allowed = 2e-6 * std::max(1.0, std::abs(g));
    EXPECT_NEAR(floats(y)[i], g * s, allowed) << g;
    EXPECT_NEAR(floats(d_gate_up)[i], s * (1 + g * (1 - s)), 2e-6) << g;
    EXPECT_NEAR(floats(d_gate_up)[F + i], g * s, allowed) << g;
  }
  floats(gate_up)[0] = NAN;
  cpu.run(SwigluForward{.gate_up = gate_up, .y = y});
  EXPECT_TRUE(std::isnan(floats(y)[0]));
}

TEST_F(Swiglu, RefusesWhatDoesNotFit) {
  const Tensor gate_up = make.normal({4, 6}), y = make.zeros({4, 6}), dy = make.zeros({4, 3});
  EXPECT_TRUE(says(refusal_of(cpu, SwigluForward{.gate_up = gate_up, .y = y}),
                   {"swiglu forward: gate_up ", "fp32 [4, 12] on cpu", "found fp32 [4, 6]"}));
  EXPECT_TRUE(says(refusal_of(cpu, SwigluBackward{.dy = dy, .gate_up = gate_up, .d_gate_up = dy}),
                   {"swiglu backward: d_gate_up ", "fp32 [4, 6] on cpu", "found fp32 [4, 3]"}));
}

}  // namespace
}  // namespace tessera::testing
