// Gated MLPs' gates on the CPU against their formulas in fp64.
#include "tests/kernels/formula.h"
#include "tests/says.h"

namespace tessera::testing {
namespace {

struct Gated : ::testing::Test {
  HostTensors make;
  CpuStream cpu;
};

double sigmoid(double g) { return 1 / (1 + std::exp(-g)); }

// Of a gate g and an up projection u: the value, and its derivatives
struct GateFormula {
  double value, of_gate, of_up;
};
GateFormula gate_formula(Gate gate, double g, double u) {
  if (gate == Gate::kSilu) {
    const double s = sigmoid(g);
    return {g * s * u, s * (1 + g * (1 - s)) * u, g * s};
  }
  if (gate == Gate::kClampedSilu) {
    const double a = 1.702, limit = 7, below = std::min(g, limit), within = std::clamp(u, -limit, limit),
                 s = sigmoid(a * below);
    return {below * s * (within + 1), g > limit ? 0 : s * (1 + a * g * (1 - s)) * (within + 1),
            within == u ? below * s : 0};
  }
  const double root = std::sqrt(2 / M_PI), t = std::tanh(root * (g + 0.044715 * g * g * g));
  return {0.5 * g * (1 + t) * u,
          (0.5 * (1 + t) + 0.5 * g * (1 - t * t) * root * (1 + 3 * 0.044715 * g * g)) * u, 0.5 * g * (1 + t)};
}

struct GatedFormula {
  Doubles y, d_gate_up;
};
GatedFormula formula(Gate kind, const Tensor& gate_up, const Tensor& dy) {
  const size_t N = static_cast<size_t>(dy.shape[0]), F = static_cast<size_t>(dy.shape[1]);
  const Doubles x = doubles(gate_up), dys = doubles(dy);
  GatedFormula f{Doubles(N * F), Doubles(N * 2 * F)};
  for (size_t n = 0; n < N; ++n)
    for (size_t i = 0; i < F; ++i) {
      const size_t gate = n * 2 * F + i, up = gate + F;
      const GateFormula a = gate_formula(kind, x[gate], x[up]);
      const double d = dys[n * F + i];
      f.y[n * F + i] = a.value;
      f.d_gate_up[gate] = d * a.of_gate;
      f.d_gate_up[up] = d * a.of_up;
    }
  return f;
}

TEST_F(Gated, IsItsFormula) {
  const std::pair<int64_t, int64_t> sizes[] = {{1, 1}, {3, 5}, {7, 13}, {65, 257}, {130, 100}};
  for (const Gate gate : kAllGates)
    for (const auto& [N, F] : sizes) {
      SCOPED_TRACE(fmt::format("gate {} N {} F {}", static_cast<int>(gate), N, F));
      const Tensor gate_up = make.normal({N, 2 * F}, 5), dy = make.normal({N, F});
      const GatedFormula want = formula(gate, gate_up, dy);
      const Tensor y = make.poisoned({N, F}), apart = make.poisoned({N, 2 * F});
      cpu.run(GatedForward{.gate_up = gate_up, .y = y, .gate = gate});
      expect_formula(y, want.y, "y");
      cpu.run(GatedBackward{.dy = dy, .gate_up = gate_up, .d_gate_up = apart, .gate = gate});
      expect_formula(apart, want.d_gate_up, "d_gate_up");
      cpu.run(GatedBackward{.dy = dy, .gate_up = gate_up, .d_gate_up = gate_up, .gate = gate});
      expect_same_bits(gate_up, apart, "in place");
    }
}

TEST_F(Gated, MatchesFiniteDifferences) {
  const Tensor gate_up = make.normal({5, 18}), y = make.poisoned({5, 9}), dy = make.normal({5, 9}),
               d_gate_up = make.poisoned({5, 18});
  for (const Gate gate : kAllGates) {
    const auto loss = [&] {
      cpu.run(GatedForward{.gate_up = gate_up, .y = y, .gate = gate});
      return dot(y, dy);
    };
    cpu.run(GatedBackward{.dy = dy, .gate_up = gate_up, .d_gate_up = d_gate_up, .gate = gate});
    expect_gradient(gate_up, d_gate_up, loss);
  }
}

// exp(-gate) overflows below -88: the gate is then 0, not NaN. NaN stays NaN.
TEST_F(Gated, HoldsAtTheEnds) {
  constexpr float kEnds[] = {-1e4f, -100, -88.8f, -88, -20, 0, 20, 88, 100, 1e4f};
  constexpr size_t F = std::size(kEnds);
  for (const Gate kind : kAllGates) {
    const Tensor gate_up = make.empty({1, 2 * F}), dy = make.empty({1, F}), y = make.poisoned({1, F}),
                 d_gate_up = make.poisoned({1, 2 * F});
    for (size_t i = 0; i < F; ++i) floats(gate_up)[i] = kEnds[i], floats(gate_up)[F + i] = floats(dy)[i] = 1;
    cpu.run(GatedForward{.gate_up = gate_up, .y = y, .gate = kind});
    cpu.run(GatedBackward{.dy = dy, .gate_up = gate_up, .d_gate_up = d_gate_up, .gate = kind});
    for (size_t i = 0; i < F; ++i) {
      const double g = static_cast<double>(kEnds[i]), allowed = 2e-6 * std::max(1.0, std::abs(g));
      const auto [value, of_gate, of_up] = gate_formula(kind, g, 1);
      EXPECT_NEAR(floats(y)[i], value, allowed) << g;
      EXPECT_NEAR(floats(d_gate_up)[i], of_gate, 2e-6) << g;
      EXPECT_NEAR(floats(d_gate_up)[F + i], of_up, allowed) << g;
    }
    floats(gate_up)[0] = NAN;
    cpu.run(GatedForward{.gate_up = gate_up, .y = y, .gate = kind});
    EXPECT_TRUE(std::isnan(floats(y)[0]));
  }
}

TEST_F(Gated, RefusesWhatDoesNotFit) {
  const Tensor gate_up = make.normal({4, 6}), y = make.zeros({4, 6}), dy = make.zeros({4, 3});
  EXPECT_TRUE(says(refusal_of(cpu, GatedForward{.gate_up = gate_up, .y = y}),
                   {"gated forward: gate_up ", "fp32 [4, 12] on cpu", "found fp32 [4, 6]"}));
  EXPECT_TRUE(says(refusal_of(cpu, GatedBackward{.dy = dy, .gate_up = gate_up, .d_gate_up = dy}),
                   {"gated backward: d_gate_up ", "fp32 [4, 6] on cpu", "found fp32 [4, 3]"}));
}

}  // namespace
}  // namespace tessera::testing
