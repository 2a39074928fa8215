// The adapter of a linear layer on the CPU: its formula in fp64, finite differences, and the product that it
// is added to.
#include <numeric>

#include "tests/kernels/formula.h"
#include "tests/says.h"

namespace tessera::testing {
namespace {

struct Lora : ::testing::Test {
  HostTensors make;
  CpuStream cpu;
};

struct Case {
  int64_t N, C, r;
  LayerParts parts;
  int64_t O() const { return std::accumulate(parts.begin(), parts.end(), int64_t{0}); }
};
const Case kCases[] = {{1, 1, 1, {1}}, {5, 7, 3, {11}}, {9, 16, 4, {8, 3, 3}}, {33, 24, 2, {40, 40}}};
constexpr float kScale = 0.75f;

// u = scale x A^T, y = add + u B^T, each output with the r columns of u of its own layer
struct LoraFormula {
  Doubles u, y;
};
LoraFormula formula(const Case& c, const Tensor& x, const Tensor& a, const Tensor& b, const Tensor& add) {
  const auto N = static_cast<size_t>(c.N), C = static_cast<size_t>(c.C), r = static_cast<size_t>(c.r),
             O = static_cast<size_t>(c.O()), width = static_cast<size_t>(a.shape[0]);
  const Doubles xs = doubles(x), as = doubles(a), bs = doubles(b);
  LoraFormula f{Doubles(N * width), doubles(add)};
  for (size_t n = 0; n < N; ++n) {
    for (size_t k = 0; k < width; ++k)
      for (size_t i = 0; i < C; ++i)
        f.u[n * width + k] += static_cast<double>(kScale) * xs[n * C + i] * as[k * C + i];
    size_t o = 0;
    for (size_t p = 0; p < c.parts.size(); ++p)
      for (int64_t i = 0; i < c.parts[p]; ++i, ++o)
        for (size_t k = 0; k < r; ++k) f.y[n * O + o] += f.u[n * width + p * r + k] * bs[o * r + k];
  }
  return f;
}

struct Tensors {
  Tensor x, a, b, add, u, y;
  Tensors(HostTensors& make, const Case& c)
      : x(make.normal({c.N, c.C})),
        a(make.normal({count_of(c.parts) * c.r, c.C})),
        b(make.normal({c.O(), c.r})),
        add(make.normal({c.N, c.O()})),
        u(make.poisoned({c.N, a.shape[0]})),
        y(make.poisoned({c.N, c.O()})) {}
  LoraForward forward(const Case& c) const {
    return {.x = x, .a = a, .b = b, .parts = c.parts, .scale = kScale, .u = u, .y = y, .add = add};
  }
};

TEST_F(Lora, ForwardIsItsFormula) {
  for (const Case& c : kCases) {
    const Tensors t(make, c);
    const LoraFormula want = formula(c, t.x, t.a, t.b, t.add);
    cpu.run(t.forward(c));
    expect_formula(t.u, want.u, "u");
    expect_formula(t.y, want.y, "y");
    LoraForward in_place = t.forward(c);
    in_place.y = t.add;
    cpu.run(in_place);
    expect_same_bits(t.add, t.y, "in place");
    LoraForward alone = t.forward(c);  // without `add`, what stood in y is not read
    alone.add = {}, alone.y = make.poisoned({c.N, c.O()});
    cpu.run(alone);
    expect_formula(alone.y, formula(c, t.x, t.a, t.b, make.zeros({c.N, c.O()})).y, "alone");
  }
}

TEST_F(Lora, BackwardMatchesFiniteDifferencesAndAddsToGradients) {
  for (const Case& c : kCases) {
    const Tensors t(make, c);
    const Tensor dy = make.normal({c.N, c.O()});
    const auto loss = [&] {
      cpu.run(t.forward(c));
      return dot(t.y, dy);
    };
    loss();
    const auto backward = [&](const Tensor& x, const Tensor& u, const Tensor& dx, const Tensor& da,
                              const Tensor& db, const Tensor& add = {}) {
      cpu.run(LoraBackward{.dy = dy,
                           .x = x,
                           .a = t.a,
                           .b = t.b,
                           .parts = c.parts,
                           .scale = kScale,
                           .u = u,
                           .dx = dx,
                           .da = da,
                           .db = db,
                           .add = add});
    };
    const Tensor da = make.zeros(t.a.shape), db = make.zeros(t.b.shape), dx = make.poisoned(t.x.shape);
    backward(t.x, make.copy_of(t.u), dx, da, db);
    const Tensor over_x = make.copy_of(t.x), twice_da = make.copy_of(da), twice_db = make.copy_of(db);
    backward(over_x, make.copy_of(t.u), over_x, twice_da, twice_db);
    expect_same_bits(over_x, dx, "over x");
    for (const auto& [twice, once] : {std::pair{twice_da, da}, std::pair{twice_db, db}}) {
      Doubles wanted = doubles(once);
      for (double& value : wanted) value *= 2;
      expect_formula(twice, wanted, "added to");
    }
    // Another part of dx, and in its place
    const Tensor add = make.normal(t.x.shape), sum = make.poisoned(t.x.shape), in_place = make.copy_of(add);
    Doubles wanted = doubles(dx);
    for (size_t i = 0; i < wanted.size(); ++i) wanted[i] += static_cast<double>(floats(add)[i]);
    for (const auto& [to, added] : {std::pair{sum, add}, std::pair{in_place, in_place}}) {
      backward(t.x, make.copy_of(t.u), to, make.zeros(t.a.shape), make.zeros(t.b.shape), added);
      expect_formula(to, wanted, "dx with add");
    }
    expect_gradient(t.x, dx, loss);
    expect_gradient(t.a, da, loss);
    expect_gradient(t.b, db, loss);
  }
}

// What a frozen layer's products are given beside an adapter.
TEST_F(Lora, AFrozenLayerAddsWhatItIsGiven) {
  const int64_t N = 6, C = 5, O = 7;
  const Tensor x = make.normal({N, C}), weight = make.normal({O, C}), bias = make.normal({O}),
               given = make.normal({N, O}), pre = make.copy_of(given), y = make.poisoned({N, O}),
               sum = make.poisoned({N, O});
  cpu.run(LinearForward{.x = x, .weight = weight, .y = sum, .bias = bias, .add = given});
  cpu.run(LinearForward{.x = x,
                        .weight = weight,
                        .y = y,
                        .bias = bias,
                        .add = pre,
                        .pre_activation = pre,
                        .activation = Activation::kRelu});
  expect_same_bits(pre, sum, "pre_activation");
  for (size_t i = 0; i < floats(sum).size(); ++i) EXPECT_EQ(floats(y)[i], std::max(0.0f, floats(sum)[i]));

  const Tensor dy = make.normal({N, O}), add = make.normal({N, C}), input = make.normal({N, C}),
               dx = make.poisoned({N, C}), over = make.copy_of(add), alone = make.poisoned({N, C});
  const auto backward = [&](const Tensor& to, const Tensor& added) {
    cpu.run(LinearBackward{.dy = dy,
                           .x = x,
                           .weight = weight,
                           .dx = to,
                           .pre_activation = input,
                           .activation = Activation::kRelu,
                           .add = added});
  };
  backward(dx, add);
  backward(over, over);
  expect_same_bits(over, dx, "over add");
  backward(alone, {});
  Doubles wanted = doubles(alone);
  for (size_t i = 0; i < wanted.size(); ++i)
    wanted[i] += floats(input)[i] > 0 ? static_cast<double>(floats(add)[i]) : 0.0;
  expect_formula(dx, wanted, "dx");
}

TEST_F(Lora, RefusesWhatDoesNotFit) {
  const Case c{5, 7, 3, {8, 3, 3}};
  const Tensors t(make, c);
  const auto refused = [&](auto change, std::initializer_list<std::string_view> words) {
    LoraForward op = t.forward(c);
    change(op);
    try {
      cpu.run(op);
      ADD_FAILURE() << "not refused: " << *words.begin();
    } catch (const Error& error) {
      EXPECT_TRUE(says(error.what(), words));
    }
  };
  refused([](LoraForward& op) { op.parts = {8, 3, 4}; }, {"LoRA forward: parts ", "14 outputs"});
  refused([](LoraForward& op) { op.parts = {0, 11, 3}; }, {"LoRA forward: a ", "fp32 [6, 7]"});
  refused([](LoraForward& op) { op.scale = std::nanf(""); }, {"LoRA forward: scale ", "number"});
  refused([&](LoraForward& op) { op.u = make.poisoned({5, 3}); }, {"LoRA forward: u ", "fp32 [5, 9]"});
  const Tensor x = make.normal({4, 4}), w = make.normal({4, 4});
  EXPECT_THROW(cpu.run(LinearForward{.x = x,
                                     .weight = w,
                                     .y = make.poisoned({4, 4}),
                                     .add = x,
                                     .pre_activation = make.poisoned({4, 4})}),
               Error);
  EXPECT_THROW(
      cpu.run(LinearBackward{
          .dy = x, .x = x, .weight = w, .dx = x, .dweight = make.zeros({4, 4}), .add = make.zeros({4, 4})}),
      Error);
}

}  // namespace
}  // namespace tessera::testing
