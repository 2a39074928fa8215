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
