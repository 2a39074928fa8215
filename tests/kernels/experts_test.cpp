// The operations of a mixture of experts on the CPU: the choice and its rows, formulas in fp64, and finite
// differences of all of them together.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/expert_ops.h"
#include "tests/kernels/formula.h"
#include "tests/says.h"

namespace tessera::testing {
namespace {

struct Case {
  int64_t N, E, k, C, F;
  RouterRule rule = {};
  bool biases = false;
  Gate gate = Gate::kSilu;
  int64_t R() const { return N * k; }
};
const Case kCases[] = {{1, 1, 1, 4, 3},
                       {7, 5, 2, 6, 4, {.renormalise = true}},
                       {9, 4, 4, 8, 5},
                       {33, 16, 3, 10, 8, {.router = Router::kSoftmaxOfChosen}},
                       {40, 6, 1, 8, 8},
                       {21, 7, 3, 6, 10, {.router = Router::kSoftmaxOfChosen}, true, Gate::kClampedSilu},
                       {13, 3, 2, 9, 5, {}, true}};

std::span<int32_t> ints(const Tensor& t) { return {t.as<int32_t>(), static_cast<size_t>(t.numel())}; }

// All operations of a block's experts, in the order of a forward and of its backward
struct Experts {
  const Case& c;
  HostTensors& make;
  const Stream& cpu;
  Tensor x = make.normal({c.N, c.C}), router = make.normal({c.E, c.C}, 0.5),
         expand = make.normal({c.E, 2 * c.F, c.C}, 0.5), contract = make.normal({c.E, c.C, c.F}, 0.5);
  Tensor router_bias = bias({c.E}), expand_bias = bias({c.E, 2 * c.F}), contract_bias = bias({c.E, c.C});
  Tensor logits = make.poisoned({c.N, c.E}), choices = make.empty({c.N, c.k}, DType::kI32),
         weights = make.poisoned({c.N, c.k}), offsets = make.empty({c.E + 1}, DType::kI32),
         rows = make.empty({c.R()}, DType::kI32), places = make.empty({c.N, c.k}, DType::kI32),
         gate_up = make.poisoned({c.R(), 2 * c.F}), hidden = make.poisoned({c.R(), c.F}),
         each = make.poisoned({c.R(), c.C}), y = make.poisoned({c.N, c.C});

  Tensor bias(Shape shape) const { return c.biases ? make.normal(shape) : Tensor{}; }
  void choose(const Tensor& counts = {}) const {
    cpu.run(RouterForward{.x = x, .weight = router, .logits = logits, .bias = router_bias});
    cpu.run(ChooseExperts{.logits = logits, .rule = c.rule, .choices = choices, .weights = weights});
    cpu.run(AssignExperts{
        .choices = choices, .offsets = offsets, .rows = rows, .places = places, .counts = counts});
  }
  void compute() const {
    cpu.run(ExpertsForward{
        .x = x, .weight = expand, .y = gate_up, .offsets = offsets, .x_rows = rows, .bias = expand_bias});
    cpu.run(GatedForward{.gate_up = gate_up, .y = hidden, .gate = c.gate});
    cpu.run(ExpertsForward{
        .x = hidden, .weight = contract, .y = each, .offsets = offsets, .bias = contract_bias});
    cpu.run(SumExperts{.x = each, .places = places, .weights = weights, .y = y});
  }
  struct Gradients {
    Tensor x, router, expand, contract;
    Tensor router_bias = {}, expand_bias = {}, contract_bias = {};
  };
  // Added to what stands there; the forward's tensors are overwritten
  void backward(const Tensor& dy, const Gradients& to, ChooseExpertsBackward losses = {}) const {
    cpu.run(ExpertsBackward{.dy = dy,
                            .x = hidden,
                            .weight = contract,
                            .dx = hidden,
                            .dweight = to.contract,
                            .dbias = to.contract_bias,
                            .offsets = offsets,
                            .dy_rows = rows,
                            .weights = weights});
    cpu.run(GatedExpertsBackward{.dy = hidden,
                                 .gate_up = gate_up,
                                 .d_gate_up = gate_up,
                                 .rows = rows,
                                 .weights = weights,
                                 .gate = c.gate,
                                 .d_sum = dy,
                                 .bias = contract_bias,
                                 .choices = choices});
    cpu.run(ExpertsBackward{.dy = gate_up,
                            .x = x,
                            .weight = expand,
                            .dx = each,
                            .dweight = to.expand,
                            .dbias = to.expand_bias,
                            .offsets = offsets,
                            .x_rows = rows});
    losses.logits = logits, losses.choices = choices, losses.d_weights = weights, losses.rule = c.rule;
    cpu.run(losses);
    cpu.run(RouterBackward{.d_logits = logits,
                           .x = x,
                           .weight = router,
                           .dx = to.x,
                           .dweight = to.router,
                           .dbias = to.router_bias});
    cpu.run(SumExperts{.x = each, .places = places, .add = to.x, .y = to.x});
  }
};

struct ExpertOps : ::testing::Test {
  HostTensors make;
  CpuStream cpu;
};

TEST_F(ExpertOps, EachTokenGoesToItsLargestLogitsAndEveryRowToItsExpert) {
  for (const Case& c : kCases) {
    Experts all{c, make, cpu};
    const Tensor counts = make.empty({c.E}, DType::kI32);
    std::ranges::fill(ints(counts), 5);
    all.choose(counts);
    const Doubles logits = doubles(all.logits);
    std::vector<int32_t> found;
    for (size_t n = 0; n < static_cast<size_t>(c.N); ++n) {
      const double* own = logits.data() + n * static_cast<size_t>(c.E);
      std::vector<int32_t> order(static_cast<size_t>(c.E));
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, std::greater<>(), [&](int32_t e) { return own[e]; });
      double sum_of_all = 0, sum_of_chosen = 0;
      for (int64_t e = 0; e < c.E; ++e) sum_of_all += std::exp(own[e]);
      for (size_t j = 0; j < static_cast<size_t>(c.k); ++j) sum_of_chosen += std::exp(own[order[j]]);
      for (size_t j = 0; j < static_cast<size_t>(c.k); ++j) {
        const size_t at = n * static_cast<size_t>(c.k) + j;
        ASSERT_EQ(ints(all.choices)[at], order[j]);
        const double want = std::exp(own[order[j]]) / (c.rule.sums_to_one() ? sum_of_chosen : sum_of_all);
        EXPECT_NEAR(floats(all.weights)[at], want, 1e-6);
        found.push_back(order[j]);
      }
    }
    for (int64_t e = 0; e < c.E; ++e) {
      const int32_t begin = ints(all.offsets)[static_cast<size_t>(e)],
                    end = ints(all.offsets)[static_cast<size_t>(e) + 1];
      EXPECT_EQ(end - begin, std::ranges::count(found, e));
      EXPECT_EQ(ints(counts)[static_cast<size_t>(e)], 5 + end - begin);
      for (int32_t row = begin; row < end; ++row) {
        const int32_t choice = ints(all.rows)[static_cast<size_t>(row)];
        EXPECT_EQ(found[static_cast<size_t>(choice)], e);
        EXPECT_EQ(ints(all.places)[static_cast<size_t>(choice)], row);
        EXPECT_TRUE(row == begin || ints(all.rows)[static_cast<size_t>(row) - 1] < choice);
      }
    }
  }
}

TEST_F(ExpertOps, EqualLogitsAreTakenInTheOrderOfTheExperts) {
  const Tensor logits = make.zeros({1, 6}), choices = make.empty({1, 3}, DType::kI32),
               weights = make.poisoned({1, 3});
  floats(logits)[4] = 1;
  cpu.run(ChooseExperts{.logits = logits, .rule = {}, .choices = choices, .weights = weights});
  EXPECT_EQ(ints(choices)[0], 4);
  EXPECT_EQ(ints(choices)[1], 0);
  EXPECT_EQ(ints(choices)[2], 1);
}

// Also where one expert has all tokens, and others none
TEST_F(ExpertOps, ASampleHasTheLoadsAndTheEntropy) {
  const float kLarge = 200;  // whose exponential is no float
  const Tensor logits = make.zeros({2, 4}), offsets = make.empty({5}, DType::kI32),
               loads = make.poisoned({4}), entropy = make.poisoned({1});
  std::ranges::copy(std::initializer_list<float>{kLarge, -kLarge, kLarge, -kLarge}, logits.as<float>() + 4);
  std::ranges::copy(std::initializer_list<int32_t>{0, 1, 1, 4, 4}, offsets.as<int32_t>());
  cpu.run(RouterSample{.logits = logits, .offsets = offsets, .loads = loads, .entropy = entropy});
  const float expected[] = {1, 0, 3, 0};
  EXPECT_TRUE(std::equal(expected, expected + 4, loads.as<float>()));
  EXPECT_NEAR(entropy.as<float>()[0], (std::log(4.0) + std::log(2.0)) / 2, 1e-6);
}

TEST_F(ExpertOps, ForwardIsTheSumOfTheChosenMlps) {
  for (const bool to_one : {false, true})
    for (const Case& c : kCases) {
      Experts all{c, make, cpu};
      if (to_one)  // the first k experts
        for (int64_t i = 0; i < c.N * c.C; ++i) floats(all.x)[static_cast<size_t>(i)] = i % c.C == 0 ? 1 : 0;
      all.choose();
      all.compute();
      Doubles want(static_cast<size_t>(c.N * c.C));
      const Doubles x = doubles(all.x), expand = doubles(all.expand), contract = doubles(all.contract);
      for (int64_t i = 0; i < c.R(); ++i) {
        const int64_t n = i / c.k, e = ints(all.choices)[static_cast<size_t>(i)];
        Doubles hidden(static_cast<size_t>(c.F));
        const auto row = [&](int64_t f) {
          double sum = c.biases ? double{floats(all.expand_bias)[static_cast<size_t>(e * 2 * c.F + f)]} : 0;
          for (int64_t q = 0; q < c.C; ++q)
            sum += x[static_cast<size_t>(n * c.C + q)] *
                   expand[static_cast<size_t>((e * 2 * c.F + f) * c.C + q)];
          return sum;
        };
        for (int64_t f = 0; f < c.F; ++f) {
          const bool clamps = c.gate == Gate::kClampedSilu;
          const double gate = clamps ? std::min(row(f), 7.0) : row(f),
                       up = clamps ? std::clamp(row(c.F + f), -7.0, 7.0) + 1 : row(c.F + f);
          hidden[static_cast<size_t>(f)] = gate / (1 + std::exp(-(clamps ? 1.702 : 1) * gate)) * up;
        }
        for (int64_t q = 0; q < c.C; ++q) {
          double sum = c.biases ? double{floats(all.contract_bias)[static_cast<size_t>(e * c.C + q)]} : 0;
          for (int64_t f = 0; f < c.F; ++f)
            sum += hidden[static_cast<size_t>(f)] * contract[static_cast<size_t>((e * c.C + q) * c.F + f)];
          want[static_cast<size_t>(n * c.C + q)] +=
              static_cast<double>(floats(all.weights)[static_cast<size_t>(i)]) * sum;
        }
      }
      expect_formula(all.y, want, "y");
    }
}

TEST_F(ExpertOps, BackwardMatchesFiniteDifferencesAndAddsToGradients) {
  for (const Case& c : kCases) {
    Experts all{c, make, cpu};
    const Tensor dy = make.normal({c.N, c.C});
    all.choose();
    const Tensor chosen = make.copy_of(all.choices);
    // The losses of routers, of a step that these tokens are: the counts are constants
    const Tensor counts = make.tokens({2, c.E}, 9), counted = make.tokens({c.N}, 3);
    ints(counts)[0] += 1;
    const double balance = 3, z = 2,
                 share = static_cast<double>(c.k) /
                         static_cast<double>(std::accumulate(ints(counts).begin(), ints(counts).end(), 0));
    const auto loss = [&] {
      all.choose();
      EXPECT_TRUE(std::ranges::equal(ints(all.choices), ints(chosen))) << "a step over an edge";
      all.compute();
      double sum = dot(all.y, dy);
      for (int64_t n = 0; n < c.N; ++n) {
        if (ints(counted)[static_cast<size_t>(n)] == 0) continue;
        const auto own = floats(all.logits).subspan(static_cast<size_t>(n * c.E), static_cast<size_t>(c.E));
        double exponentials = 0;
        for (const float logit : own) exponentials += std::exp(static_cast<double>(logit));
        sum += z * share * std::pow(std::log(exponentials), 2);
        for (size_t e = 0; e < own.size(); ++e)
          sum += balance * share * share * (ints(counts)[e] + ints(counts)[own.size() + e]) *
                 std::exp(static_cast<double>(own[e])) / exponentials;
      }
      return sum;
    };
    const auto zeros = [&](const Tensor& like) { return like ? make.zeros(like.shape) : Tensor{}; };
    const auto copy = [&](const Tensor& of) { return of ? make.copy_of(of) : Tensor{}; };
    const Experts::Gradients once{make.poisoned(all.x.shape), zeros(all.router),      zeros(all.expand),
                                  zeros(all.contract),        zeros(all.router_bias), zeros(all.expand_bias),
                                  zeros(all.contract_bias)};
    const ChooseExpertsBackward losses{.logits = {},
                                       .choices = {},
                                       .d_weights = {},
                                       .rule = {},
                                       .counts = counts,
                                       .counted = counted,
                                       .balance = static_cast<float>(balance),
                                       .z = static_cast<float>(z)};
    loss();
    all.backward(dy, once, losses);
    const Experts::Gradients twice{make.poisoned(all.x.shape), copy(once.router),      copy(once.expand),
                                   copy(once.contract),        copy(once.router_bias), copy(once.expand_bias),
                                   copy(once.contract_bias)};
    loss();
    all.backward(dy, twice, losses);
    for (const auto& [more, one] :
         {std::pair{twice.router, once.router}, std::pair{twice.expand, once.expand},
          std::pair{twice.contract, once.contract}, std::pair{twice.router_bias, once.router_bias},
          std::pair{twice.expand_bias, once.expand_bias},
          std::pair{twice.contract_bias, once.contract_bias}}) {
      if (!one) continue;
      Doubles wanted = doubles(one);
      for (double& value : wanted) value *= 2;
      expect_formula(more, wanted, "added to");
    }
    expect_gradient(all.contract, once.contract, loss, 2e-3, 1e-2);
    expect_gradient(all.expand, once.expand, loss, 2e-3, 1e-2);
    // So small that no choice changes; biases enlarge the loss, and so its roundings.
    const double step = c.E == 1 ? 1e-2 : c.biases ? 3e-4 : 1e-4, allowed = c.biases ? 6e-3 : 2e-3;
    expect_gradient(all.router, once.router, loss, allowed, step);
    expect_gradient(all.x, once.x, loss, 2e-3, 1e-3);
    if (!c.biases) continue;
    expect_gradient(all.contract_bias, once.contract_bias, loss, 2e-3, 1e-2);
    expect_gradient(all.expand_bias, once.expand_bias, loss, 2e-3, 1e-2);
    expect_gradient(all.router_bias, once.router_bias, loss, allowed, step);
  }
}

TEST_F(ExpertOps, WithoutAccumulationAnExpertWithoutRowsHasNoGradient) {
  const Case c{2, 8, 1, 4, 3};
  Experts all{c, make, cpu};
  all.choose();
  all.compute();
  const Tensor dweight = make.poisoned(all.contract.shape), dy = make.normal({c.N, c.C});
  cpu.run(ExpertsBackward{.dy = dy,
                          .x = all.hidden,
                          .weight = all.contract,
                          .dx = all.hidden,
                          .dweight = dweight,
                          .offsets = all.offsets,
                          .dy_rows = all.rows,
                          .weights = all.weights,
                          .accumulate = false});
  size_t at = 0;
  for (int64_t e = 0; e < c.E; ++e) {
    const bool chosen = std::ranges::find(ints(all.choices), e) != ints(all.choices).end();
    for (int64_t i = 0; i < c.C * c.F; ++i, ++at)
      EXPECT_EQ(floats(dweight)[at] != 0, chosen) << "expert " << e;
  }
}

// y = add + sigmoid(logit) x
TEST_F(ExpertOps, ASharedExpertIsItsFormulaAndGradient) {
  const Tensor x = make.normal({5, 7}), logits = make.normal({5, 1}), add = make.normal({5, 7}),
               y = make.poisoned({5, 7}), dy = make.normal({5, 7});
  const auto loss = [&] {
    cpu.run(AddShared{.x = x, .logits = logits, .add = add, .y = y});
    return dot(y, dy);
  };
  loss();
  Doubles want = doubles(add);
  for (size_t i = 0; i < want.size(); ++i)
    want[i] += double{floats(x)[i]} / (1 + std::exp(-double{floats(logits)[i / 7]}));
  expect_formula(y, want, "y");
  const Tensor dx = make.copy_of(x), d_logits = make.copy_of(logits);
  cpu.run(AddSharedBackward{.dy = dy, .x = dx, .d_logits = d_logits, .dx = dx});
  expect_gradient(x, dx, loss);
  expect_gradient(logits, d_logits, loss);
  EXPECT_TRUE(says(refusal_of(cpu, AddShared{.x = x, .logits = make.normal({5, 2}), .add = add, .y = y}),
                   {"logits", "fp32 [5, 1]"}));
}

// The adapter of a layer of experts, or without offsets of a router
struct Adapter {
  const Stream& cpu;
  Tensor x, a, b, u, offsets = {}, x_rows = {}, dy_rows = {}, weights = {};
  float scale = 0.75f;

  void forward(const Tensor& y) const {
    cpu.run(ExpertsLoraForward{
        .x = x, .a = a, .b = b, .scale = scale, .u = u, .y = y, .offsets = offsets, .x_rows = x_rows});
  }
  // Added to what stands there; u is overwritten
  void backward(const Tensor& dy, const Tensor& dx, const Tensor& da, const Tensor& db,
                bool accumulate = true) const {
    cpu.run(ExpertsLoraBackward{.dy = dy,
                                .x = x,
                                .b = b,
                                .scale = scale,
                                .u = u,
                                .da = da,
                                .db = db,
                                .offsets = offsets,
                                .x_rows = x_rows,
                                .dy_rows = dy_rows,
                                .weights = weights,
                                .accumulate = accumulate});
    cpu.run(ExpertsLoraInput{.u = u, .a = a, .dx = dx, .offsets = offsets});
  }
};

// y += scale B A x, of the A and B of each row's expert; and the gradients of the sum of products of y and
// dy, where y is weighted as the choices are
TEST_F(ExpertOps, AdaptersAreTheirFormulaAndGradients) {
  constexpr int64_t r = 3;
  enum class Of { kRouter, kExpand, kContract };
  for (const Case& c : kCases)
    for (const Of of : {Of::kRouter, Of::kExpand, Of::kContract}) {
      Experts all{c, make, cpu};
      all.choose();
      const bool routes = of == Of::kRouter;
      const int64_t I = of == Of::kContract ? c.F : c.C,
                    O = routes              ? c.E
                        : of == Of::kExpand ? 2 * c.F
                                            : c.C,
                    R = routes ? c.N : c.R(), experts = routes ? 1 : c.E;
      Adapter own{.cpu = cpu,
                  .x = of == Of::kContract ? make.normal({R, I}) : all.x,
                  .a = make.normal(routes ? Shape{r, I} : Shape{c.E, r, I}),
                  .b = make.normal(routes ? Shape{O, r} : Shape{c.E, O, r}),
                  .u = make.poisoned({R, r})};
      if (!routes) own.offsets = all.offsets;
      if (of == Of::kExpand) own.x_rows = all.rows;
      if (of == Of::kContract) own.dy_rows = all.rows, own.weights = all.weights;
      const Tensor before = make.normal({R, O}), dy = make.normal({of == Of::kContract ? c.N : R, O});
      const auto row = [&](int64_t i) {
        return routes ? i : int64_t{ints(all.rows)[static_cast<size_t>(i)]};
      };
      Doubles want = doubles(before), d_rows(want.size());
      const Doubles x = doubles(own.x), a = doubles(own.a), b = doubles(own.b);
      for (int64_t i = 0; i < R; ++i) {
        const int64_t e = experts == 1 ? 0 : ints(all.choices)[static_cast<size_t>(row(i))];
        const int64_t from = of == Of::kExpand ? row(i) / c.k : i;
        const bool weighted = of == Of::kContract;
        const double weight = weighted ? double{floats(all.weights)[static_cast<size_t>(row(i))]} : 1;
        for (int64_t o = 0; o < O; ++o) {
          const auto at = static_cast<size_t>(i * O + o);
          for (int64_t k = 0; k < r; ++k)
            for (int64_t q = 0; q < I; ++q)
              want[at] += double{own.scale} * b[static_cast<size_t>((e * O + o) * r + k)] *
                          a[static_cast<size_t>((e * r + k) * I + q)] * x[static_cast<size_t>(from * I + q)];
          d_rows[at] =
              weight * double{floats(dy)[static_cast<size_t>((weighted ? row(i) / c.k : i) * O + o)]};
        }
      }
      const Tensor y = make.copy_of(before);
      own.forward(y);
      expect_formula(y, want, "y");

      const auto loss = [&] {
        std::ranges::copy(floats(before), y.as<float>());
        own.forward(y);
        double sum = 0;
        for (size_t i = 0; i < d_rows.size(); ++i) sum += d_rows[i] * double{floats(y)[i]};
        return sum;
      };
      const Tensor da = make.zeros(own.a.shape), db = make.zeros(own.b.shape), dx = make.zeros({R, I}),
                   over = make.poisoned(da.shape);
      loss();
      const Tensor u = make.copy_of(own.u);
      own.backward(dy, dx, da, db);
      std::ranges::copy(floats(u), own.u.as<float>());
      const Tensor b_over = make.poisoned(db.shape);
      own.backward(dy, make.zeros({R, I}), over, b_over, false);
      expect_same_bits(over, da, "da without accumulation");
      expect_same_bits(b_over, db, "db without accumulation");
      expect_gradient(own.a, da, loss, 2e-3, 1e-2);
      expect_gradient(own.b, db, loss, 2e-3, 1e-2);
      if (of == Of::kContract) {  // without the weights, which the activation's backward multiplies by
        for (int64_t i = 0; i < R * I; ++i)
          dx.as<float>()[i] *= floats(all.weights)[static_cast<size_t>(row(i / I))];
        expect_gradient(own.x, dx, loss, 2e-3, 1e-2);
      } else if (routes) {
        expect_gradient(own.x, dx, loss, 2e-3, 1e-2);
      } else {
        const Tensor of_tokens = make.poisoned({c.N, I});
        cpu.run(SumExperts{.x = dx, .places = all.places, .y = of_tokens});
        expect_gradient(own.x, of_tokens, loss, 2e-3, 1e-2);
      }
    }
}

TEST_F(ExpertOps, AdaptersRefuseWhatDoesNotFit) {
  const Case c{4, 3, 2, 4, 3};
  Experts all{c, make, cpu};
  all.choose();
  ExpertsLoraForward op{.x = all.x,
                        .a = make.normal({3, 2, 4}),
                        .b = make.normal({3, 6, 2}),
                        .scale = 1,
                        .u = make.empty({8, 2}),
                        .y = all.gate_up,
                        .offsets = all.offsets,
                        .x_rows = all.rows};
  cpu.run(op);
  op.scale = std::nanf("");
  EXPECT_TRUE(says(refusal_of(cpu, op), {"scale", "nan"}));
  op.scale = 1, op.a = make.normal({3, 3, 4});
  EXPECT_TRUE(says(refusal_of(cpu, op), {"experts LoRA forward: a ", "fp32 [3, 2, 4]"}));
  op.offsets = {};
  EXPECT_TRUE(says(refusal_of(cpu, op), {"experts LoRA forward: a ", "fp32 [2, 4]"}));
  EXPECT_TRUE(says(
      refusal_of(
          cpu, ExpertsLoraInput{.u = op.u, .a = make.normal({3, 2, 4}), .dx = all.x, .offsets = all.offsets}),
      {"dx ", "fp32 [8, 4]"}));
}

TEST_F(ExpertOps, RefuseWhatDoesNotFit) {
  const Case c{4, 3, 2, 4, 3};
  const Experts all{c, make, cpu};
  const Tensor four = make.empty({4, 4}, DType::kI32);
  EXPECT_TRUE(says(
      refusal_of(
          cpu,
          ChooseExperts{.logits = all.logits, .rule = {}, .choices = four, .weights = make.empty({4, 4})}),
      {"1", "3", "4"}));
  EXPECT_TRUE(says(refusal_of(cpu, ChooseExpertsBackward{.logits = all.logits,
                                                         .choices = all.choices,
                                                         .d_weights = all.weights,
                                                         .rule = {},
                                                         .balance = 1}),
                   {"counts", "int32 [1, 3]"}));
  EXPECT_TRUE(says(refusal_of(cpu, ExpertsBackward{.dy = all.y,
                                                   .x = all.x,
                                                   .weight = all.contract,
                                                   .dx = all.hidden,
                                                   .offsets = all.offsets,
                                                   .x_rows = all.rows,
                                                   .dy_rows = all.rows}),
                   {"x_rows", "dy_rows"}));
}

}  // namespace
}  // namespace tessera::testing
