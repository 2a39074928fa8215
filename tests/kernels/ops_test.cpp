// CPU operations against finite differences and plain formulas.
#include <cstring>
#include <optional>

#include "tests/kernels/attention_heads.h"
#include "tests/kernels/formula.h"
#include "tests/says.h"

namespace tessera::testing {
namespace {

std::vector<std::optional<Activation>> with_and_without() {
  std::vector<std::optional<Activation>> all{std::nullopt};
  all.insert(all.end(), kActivations.begin(), kActivations.end());
  return all;
}

struct Ops : ::testing::Test {
  void expect_cross_entropy_of_finite_differences(float cap, bool weighted);

  HostTensors make;
  CpuStream cpu;
};

// Few rows and many go different ways.
TEST_F(Ops, LinearForwardIsTheProductPlusBiasPlusResidual) {
  const int64_t C = 37, O = 13;
  for (const int64_t N : {1, 3, 8, 9, 40})
    for (const bool has_bias : {true, false})
      for (const bool has_add : {true, false}) {
        SCOPED_TRACE(fmt::format("{} rows, bias {}, residual {}", N, has_bias, has_add));
        const Tensor x = make.normal({N, C}), w = make.normal({O, C}), b = make.normal({O}),
                     add = make.normal({N, O});
        const Tensor y = make.poisoned({N, O}), in_place = make.copy_of(add);
        LinearForward product{.x = x, .weight = w, .y = y};
        if (has_bias) product.bias = b;
        if (has_add) product.add = add;
        cpu.run(product);
        for (int64_t n = 0; n < N; ++n)
          for (int64_t o = 0; o < O; ++o) {
            double sum = (has_bias ? floats(b)[o] : 0.0) + (has_add ? floats(add)[n * O + o] : 0.0);
            for (int64_t c = 0; c < C; ++c)
              sum += static_cast<double>(floats(x)[n * C + c]) * floats(w)[o * C + c];
            EXPECT_NEAR(floats(y)[n * O + o], sum, 3e-5);
          }
        if (!has_add) continue;
        product.add = product.y = in_place;
        cpu.run(product);
        EXPECT_EQ(std::memcmp(in_place.data, y.data, y.bytes()), 0);
      }
}

// As when texts are continued together: a row has the same bits beside others as alone.
TEST_F(Ops, LinearForwardOfFewRowsIsThatOfEach) {
  const Tensor x = make.normal({8, 100}), w = make.normal({23, 100}), y = make.poisoned({8, 23}),
               alone = make.poisoned({1, 23});
  cpu.run(LinearForward{.x = x, .weight = w, .y = y});
  for (int64_t n = 0; n < 8; ++n) {
    cpu.run(LinearForward{.x = x.rows(n, 1), .weight = w, .y = alone});
    EXPECT_EQ(std::memcmp(alone.data, y.rows(n, 1).data, alone.bytes()), 0) << n;
  }
}

TEST_F(Ops, LinearBackwardMatchesFiniteDifferences) {
  for (const std::optional<Activation> activation : with_and_without()) {
    const int64_t N = 6, C = 9, O = 11;
    // With an activation, x is itself activation(u), and dx is the gradient of u.
    const Tensor u = make.normal({N, C}), x = make.poisoned({N, C}), identity = make.zeros({C, C});
    for (int64_t c = 0; c < C; ++c) floats(identity)[c * C + c] = 1;
    const Tensor w = make.normal({O, C}), b = make.normal({O}), y = make.poisoned({N, O}),
                 pre = make.poisoned({N, C});
    const Tensor dy = make.normal({N, O});
    const auto loss = [&] {
      if (activation)
        cpu.run(LinearForward{
            .x = u, .weight = identity, .y = x, .pre_activation = pre, .activation = *activation});
      else
        std::memcpy(x.data, u.data, u.bytes());
      cpu.run(LinearForward{.x = x, .weight = w, .y = y, .bias = b});
      return dot(y, dy);
    };
    loss();
    const Tensor dx = make.poisoned({N, C}), dw = make.zeros({O, C}), db = make.zeros({O});
    cpu.run(LinearBackward{.dy = dy,
                           .x = x,
                           .weight = w,
                           .dx = dx,
                           .dweight = dw,
                           .dbias = db,
                           .pre_activation = activation ? pre : Tensor{},
                           .activation = activation.value_or(Activation::kGelu)});
    expect_gradient(u, dx, loss);
    expect_gradient(w, dw, loss);
    expect_gradient(b, db, loss);
  }
}

TEST_F(Ops, LinearBackwardInPlaceHasTheSameBits) {
  for (const std::optional<Activation> activation : with_and_without()) {
    const int64_t N = 37, C = 19, O = 23;
    const Tensor x = make.normal({N, C}), w = make.normal({O, C}), dy = make.normal({N, O}),
                 u = activation ? make.normal({N, C}) : Tensor{};
    std::vector<Tensor> results[2];
    for (const bool in_place : {false, true}) {
      const Tensor input = make.copy_of(x), dx = in_place ? input : make.poisoned({N, C}),
                   dw = make.zeros({O, C}), db = make.zeros({O});
      cpu.run(LinearBackward{.dy = dy,
                             .x = input,
                             .weight = w,
                             .dx = dx,
                             .dweight = dw,
                             .dbias = db,
                             .pre_activation = u,
                             .activation = activation.value_or(Activation::kGelu)});
      results[in_place] = {dx, dw, db};
    }
    for (size_t i = 0; i < 3; ++i)
      EXPECT_EQ(std::memcmp(results[0][i].data, results[1][i].data, results[0][i].bytes()), 0)
          << (activation ? name_of(*activation) : "") << " " << i;
  }
}

TEST_F(Ops, LinearBackwardOfAFrozenWeightComputesDxAlone) {
  const int64_t N = 6, C = 9, O = 11;
  const Tensor x = make.normal({N, C}), w = make.normal({O, C}), dy = make.normal({N, O});
  const Tensor dw = make.zeros({O, C}), with = make.poisoned({N, C}), without = make.poisoned({N, C});
  cpu.run(LinearBackward{.dy = dy, .x = x, .weight = w, .dx = with, .dweight = dw});
  cpu.run(LinearBackward{.dy = dy, .x = x, .weight = w, .dx = without});
  EXPECT_EQ(std::memcmp(with.data, without.data, with.bytes()), 0);
  try {
    cpu.run(LinearBackward{.dy = dy, .x = x, .weight = w, .dx = without, .dbias = make.zeros({O})});
    FAIL() << "a bias whose weight is frozen was trained";
  } catch (const Error& error) {
    EXPECT_TRUE(says(error.what(), {"linear backward: dbias ", "dweight"}));
  }
}

TEST_F(Ops, LinearBackwardRefusesToOverwriteWhatItStillReads) {
  const Tensor x = make.normal({8, 8}), w = make.normal({8, 8}), dy = make.normal({8, 8}),
               dw = make.zeros({8, 8});
  for (const auto& [name, dx] : {std::pair{"dy", dy}, std::pair{"weight", w}}) {
    try {
      cpu.run(LinearBackward{.dy = dy, .x = x, .weight = w, .dx = dx, .dweight = dw});
      ADD_FAILURE() << name << " was overwritten";
    } catch (const Error& error) {
      EXPECT_TRUE(says(error.what(), {"linear backward: dx ", fmt::format(" {} is read", name)}));
    }
  }
}

TEST_F(Ops, ParameterGradientsAreAddedTo) {
  const Tensor x = make.normal({4, 3}), w = make.normal({2, 3}), dy = make.normal({4, 2}),
               dx = make.poisoned({4, 3});
  const Tensor once = make.zeros({2, 3}), twice = make.zeros({2, 3}), db = make.zeros({2});
  cpu.run(LinearBackward{.dy = dy, .x = x, .weight = w, .dx = dx, .dweight = once});
  for (int i = 0; i < 2; ++i)
    cpu.run(LinearBackward{.dy = dy, .x = x, .weight = w, .dx = dx, .dweight = twice, .dbias = db});
  for (int i = 0; i < 6; ++i) EXPECT_NEAR(floats(twice)[i], 2 * floats(once)[i], 1e-5);
}

// Value and slope of every activation, from -20 to 20.
TEST_F(Ops, ActivationsMatchTheirFormulasEverywhere) {
  struct Case {
    Activation activation;
    double (*value)(double);
    double (*slope)(double);
  };
  static constexpr double kScale = 0.79788456080286535588, kCubic = 0.044715;  // sqrt(2 / pi)
  const Case cases[] = {
      {Activation::kGelu,
       [](double v) { return v * 0.5 * (1 + std::tanh(kScale * (v + kCubic * v * v * v))); },
       [](double v) {
         const double t = std::tanh(kScale * (v + kCubic * v * v * v));
         return 0.5 * (1 + t) + 0.5 * v * (1 - t * t) * kScale * (1 + 3 * kCubic * v * v);
       }},
      {Activation::kGeluExact, [](double v) { return v * 0.5 * std::erfc(-v / std::sqrt(2.0)); },
       [](double v) {
         return 0.5 * std::erfc(-v / std::sqrt(2.0)) + v * std::exp(-v * v / 2) / std::sqrt(2 * M_PI);
       }},
      {Activation::kRelu, [](double v) { return v > 0 ? v : 0; }, [](double v) { return v > 0 ? 1.0 : 0; }},
      {Activation::kRelu2, [](double v) { return v > 0 ? v * v : 0; },
       [](double v) { return v > 0 ? 2 * v : 0; }}};
  static_assert(std::size(cases) == std::size(kActivations), "an activation has no case");
  constexpr int64_t kCount = 401;
  const Tensor x = make.empty({1, kCount}), identity = make.zeros({kCount, kCount}),
               ones = make.empty({1, kCount}), none = make.zeros({kCount, kCount});
  for (size_t i = 0; i < kCount; ++i) {
    floats(x)[i] = static_cast<float>(static_cast<int>(i) - 200) * 0.1f;
    floats(identity)[i * kCount + i] = floats(ones)[i] = 1;
  }
  for (const auto& [activation, value, slope] : cases) {
    const Tensor y = make.poisoned({1, kCount}), pre = make.poisoned({1, kCount}),
                 dx = make.poisoned({1, kCount});
    cpu.run(
        LinearForward{.x = x, .weight = identity, .y = y, .pre_activation = pre, .activation = activation});
    cpu.run(LinearBackward{.dy = ones,
                           .x = y,
                           .weight = identity,
                           .dx = dx,
                           .dweight = none,
                           .pre_activation = pre,
                           .activation = activation});
    for (size_t i = 0; i < kCount; ++i) {
      const double v = static_cast<double>(floats(x)[i]);
      EXPECT_NEAR(floats(y)[i], value(v), 1e-6 * std::max({1.0, std::abs(v), value(v)}))
          << name_of(activation) << " " << v;
      EXPECT_NEAR(floats(dx)[i], slope(v), 2e-6 * std::max(1.0, slope(v))) << name_of(activation) << " " << v;
    }
  }
}

TEST_F(Ops, ReluAndItsSquareKeepWhatIsNotANumber) {
  const Tensor x = make.empty({1, 1}), w = make.empty({1, 1}), y = make.zeros({1, 1}),
               pre = make.zeros({1, 1});
  floats(x)[0] = NAN, floats(w)[0] = 1;
  for (const Activation activation : {Activation::kRelu, Activation::kRelu2}) {
    floats(y)[0] = 0;
    cpu.run(LinearForward{.x = x, .weight = w, .y = y, .pre_activation = pre, .activation = activation});
    EXPECT_TRUE(std::isnan(floats(y)[0])) << name_of(activation);
  }
}

TEST_F(Ops, LayerNormAddsEpsilonToTheVariance) {
  const int64_t C = 4;
  const Tensor x = make.empty({1, C}), weight = make.empty({C}), bias = make.zeros({C});
  for (size_t c = 0; c < 4; ++c)
    floats(x)[c] = c < 2 ? -0.01f : 0.01f, floats(weight)[c] = 1;  // variance 1e-4
  for (const float epsilon : {1e-5f, 1e-3f, 1.0f}) {
    const Tensor y = make.poisoned({1, C}), mean = make.poisoned({1}), rstd = make.poisoned({1});
    cpu.run(LayerNormForward{
        .x = x, .weight = weight, .bias = bias, .y = y, .mean = mean, .rstd = rstd, .epsilon = epsilon});
    const double wanted = 1 / std::sqrt(1e-4 + static_cast<double>(epsilon));
    EXPECT_NEAR(floats(rstd)[0] / wanted, 1, 1e-6);
    EXPECT_NEAR(floats(y)[3], 0.01 * wanted, 1e-6);
  }
  EXPECT_THROW(cpu.run(LayerNormForward{.x = x,
                                        .weight = weight,
                                        .bias = bias,
                                        .y = make.zeros({1, C}),
                                        .mean = make.zeros({1}),
                                        .rstd = make.zeros({1}),
                                        .epsilon = 0}),
               Error);
}

TEST_F(Ops, LayerNormMatchesFiniteDifferences) {
  const int64_t N = 5, C = 13;
  const Tensor x = make.normal({N, C}, 2, 1), w = make.normal({C}), b = make.normal({C}),
               y = make.poisoned({N, C});
  const Tensor mean = make.poisoned({N}), rstd = make.poisoned({N}), dy = make.normal({N, C});
  const auto loss = [&] {
    cpu.run(LayerNormForward{.x = x, .weight = w, .bias = b, .y = y, .mean = mean, .rstd = rstd});
    return dot(y, dy);
  };
  loss();
  const Tensor dx = make.poisoned({N, C}), dw = make.zeros({C}), db = make.zeros({C});
  cpu.run(LayerNormBackward{
      .dy = dy, .x = x, .weight = w, .mean = mean, .rstd = rstd, .dx = dx, .dweight = dw, .dbias = db});
  expect_gradient(x, dx, loss);
  expect_gradient(w, dw, loss);
  expect_gradient(b, db, loss);

  // The residual's gradient is added, in place too.
  const Tensor add = make.normal({N, C}), sum = make.copy_of(add);
  cpu.run(LayerNormBackward{.dy = dy,
                            .x = x,
                            .weight = w,
                            .mean = mean,
                            .rstd = rstd,
                            .dx = sum,
                            .dweight = dw,
                            .dbias = db,
                            .add = sum});
  for (int64_t i = 0; i < N * C; ++i) EXPECT_NEAR(floats(sum)[i], floats(add)[i] + floats(dx)[i], 1e-5);
}

TEST_F(Ops, EmbeddingMatchesFiniteDifferences) {
  const int64_t B = 3, T = 7, C = 5, V = 4;  // few tokens, so that rows share them
  const Tensor tokens = make.tokens({B, T}, V), table = make.normal({V, C}),
               positions = make.normal({T + 2, C});
  const Tensor y = make.poisoned({B, T, C}), dy = make.normal({B, T, C});
  const auto loss = [&] {
    cpu.run(EmbeddingForward{.tokens = tokens, .token_table = table, .position_table = positions, .y = y});
    return dot(y, dy);
  };
  loss();
  const Tensor d_table = make.zeros({V, C}), d_positions = make.zeros({T + 2, C});
  cpu.run(EmbeddingBackward{
      .tokens = tokens, .dy = dy, .d_token_table = d_table, .d_position_table = d_positions});
  expect_gradient(table, d_table, loss);
  expect_gradient(positions, d_positions, loss);
}

TEST_F(Ops, EmbeddingRefusesATokenOutsideTheTable) {
  const Tensor tokens = make.tokens({1, 2}, 4), table = make.normal({4, 8}), positions = make.normal({2, 8});
  tokens.as<int32_t>()[1] = 4;
  EXPECT_THROW(
      cpu.run(EmbeddingForward{
          .tokens = tokens, .token_table = table, .position_table = positions, .y = make.zeros({1, 2, 8})}),
      std::exception);
}

void Ops::expect_cross_entropy_of_finite_differences(float cap, bool weighted) {
  const int64_t N = 6, V = 9, padded = 16;
  const Tensor logits = make.normal({N, padded}, 3), targets = make.tokens({N}, V),
               losses = make.poisoned({N}), weights = weighted ? make.normal({N}) : Tensor{};
  const auto loss = [&] {
    cpu.run(CrossEntropy{.logits = logits,
                         .targets = targets,
                         .losses = losses,
                         .vocab_size = V,
                         .want_gradient = false,
                         .cap = cap,
                         .weights = weights});
    double sum = 0;
    for (const float l : floats(losses)) sum += l;
    return 0.25 * sum;
  };
  const double before = loss();
  const Tensor gradient = make.copy_of(logits);
  cpu.run(CrossEntropy{.logits = gradient,
                       .targets = targets,
                       .losses = losses,
                       .vocab_size = V,
                       .want_gradient = true,
                       .cap = cap,
                       .gradient_scale = make.scalar(0.25f),
                       .weights = weights});
  double sum = 0;
  for (const float l : floats(losses)) sum += l;
  EXPECT_NEAR(0.25 * sum, before, 1e-5);
  expect_gradient(logits, gradient, loss);
  for (int64_t n = 0; n < N; ++n)
    for (int64_t v = V; v < padded; ++v) {
      EXPECT_EQ(floats(gradient)[n * padded + v], 0);
      floats(logits)[n * padded + v] = 1e30f;  // must not matter
    }
  EXPECT_NEAR(loss(), before, 1e-6);
}

TEST_F(Ops, CrossEntropyMatchesFiniteDifferencesAndIgnoresPadding) {
  for (const float cap : {0.0f, 2.0f, 15.0f})
    for (const bool weighted : {false, true}) expect_cross_entropy_of_finite_differences(cap, weighted);
}

// With a cap, against the formula in fp64: rows of odd sizes, logits far below and far beyond the cap
TEST_F(Ops, CappedCrossEntropyIsItsFormula) {
  for (const auto [N, V, padded] : {std::array<int64_t, 3>{1, 1, 1}, {7, 13, 16}, {3, 257, 384}})
    for (const float cap : {1.0f, 15.0f, 1000.0f})
      for (const float spread : {1e-4f, 0.1f, 10.0f, 1e4f}) {
        SCOPED_TRACE(fmt::format("{} of {}, cap {}, spread {}", V, padded, cap, spread));
        const Tensor logits = make.normal({N, padded}, spread), gradient = make.copy_of(logits),
                     capped = make.copy_of(logits), targets = make.tokens({N}, static_cast<int32_t>(V)),
                     losses = make.poisoned({N}), of_training = make.poisoned({N});
        cpu.run(CrossEntropy{.logits = logits,
                             .targets = targets,
                             .losses = losses,
                             .vocab_size = V,
                             .want_gradient = false,
                             .cap = cap});
        cpu.run(CrossEntropy{.logits = gradient,
                             .targets = targets,
                             .losses = of_training,
                             .vocab_size = V,
                             .want_gradient = true,
                             .cap = cap,
                             .gradient_scale = make.scalar(2)});
        cpu.run(CapLogits{.logits = capped, .cap = cap});
        for (int64_t n = 0; n < N; ++n) {
          const auto tanh_of = [&](int64_t v) {
            return std::tanh(static_cast<double>(floats(logits)[n * padded + v]) / static_cast<double>(cap));
          };
          double largest = -1, sum = 0;  // relative to that of the largest
          for (int64_t v = 0; v < V; ++v) largest = std::max(largest, tanh_of(v));
          for (int64_t v = 0; v < V; ++v) sum += std::exp(cap * (tanh_of(v) - largest));
          const int32_t target = targets.as<int32_t>()[n];
          const double roundings = 8 * tolerance::kRoundingF32,
                       loss = std::log(sum) + cap * (largest - tanh_of(target));
          for (const Tensor& found : {losses, of_training})
            EXPECT_NEAR(floats(found)[n], loss, tolerance::kCpuLogSumExp + roundings * cap);
          for (int64_t v = 0; v < padded; ++v) {
            const double t = tanh_of(v), share = std::exp(cap * (t - largest)) / sum, slope = 1 - t * t;
            ASSERT_NEAR(floats(capped)[n * padded + v], cap * t, roundings * std::abs(cap * t));
            if (v >= V) {
              ASSERT_EQ(floats(gradient)[n * padded + v], 0);
              continue;
            }
            // An error of the capped logit changes its exponential by as much, relatively.
            ASSERT_NEAR(floats(gradient)[n * padded + v], 2 * (share - (v == target)) * slope,
                        2 * roundings * (cap + 1) * share + 4 * roundings)
                << v;
          }
        }
      }
}

TEST_F(Ops, CapsOfLogitsKeepWhatIsNotANumber) {
  const Tensor logits = make.normal({1, 4});
  floats(logits)[1] = NAN, floats(logits)[2] = INFINITY, floats(logits)[3] = -INFINITY;
  cpu.run(CapLogits{.logits = logits, .cap = 15});
  EXPECT_TRUE(std::isnan(floats(logits)[1]));
  EXPECT_EQ(floats(logits)[2], 15);
  EXPECT_EQ(floats(logits)[3], -15);
  EXPECT_NE(message_of([&] { cpu.run(CapLogits{.logits = logits, .cap = 0}); }).find("above 0, found 0"),
            std::string::npos);
}

// A vocabulary of 49,152 tokens in one fp32 sum a lane loses 1.7e-5 nats.
TEST_F(Ops, CrossEntropyOfLargeVocabulariesIsThatOfItsFormula) {
  const int64_t N = 3;
  for (const int64_t V : {49'152, 151'936})
    for (const float spread : {0.1f, 1.0f, 4.0f}) {
      SCOPED_TRACE(fmt::format("{} tokens, spread {}", V, spread));
      const Tensor logits = make.normal({N, V}, spread), targets = make.tokens({N}, static_cast<int32_t>(V)),
                   losses = make.poisoned({N}), of_training = make.poisoned({N}),
                   gradient = make.copy_of(logits);
      cpu.run(CrossEntropy{
          .logits = logits, .targets = targets, .losses = losses, .vocab_size = V, .want_gradient = false});
      cpu.run(CrossEntropy{.logits = gradient,
                           .targets = targets,
                           .losses = of_training,
                           .vocab_size = V,
                           .want_gradient = true});
      expect_same_bits(of_training, losses, "losses");
      for (int64_t n = 0; n < N; ++n) {
        const float* row = &floats(logits)[n * V];
        double sum = 0;
        for (int64_t v = 0; v < V; ++v) sum += std::exp(static_cast<double>(row[v]));
        const int32_t target = targets.as<int32_t>()[n];
        const double loss = std::log(sum) - row[target];
        EXPECT_NEAR(floats(losses)[n], loss, tolerance::kCpuLogSumExp + tolerance::kRoundingF32 * loss);
        for (int64_t v = 0; v < V; ++v) {
          const double share = std::exp(static_cast<double>(row[v])) / sum;
          // The logits lie up to 10 spreads apart: so many roundings of their difference.
          const double roundings = tolerance::kCpuLogSumExp + 10 * spread * tolerance::kRoundingF32;
          ASSERT_NEAR(floats(gradient)[n * V + v], share - (v == target),
                      roundings * share + (v == target ? tolerance::kRoundingF32 : 0))
              << v;
        }
      }
    }
}

// A row without a target is as if it were not there, whatever its logits are; the others keep their bits.
TEST_F(Ops, CrossEntropyOfNoTargetIsZero) {
  const int64_t N = 6, V = 9, padded = 16;
  const Tensor logits = make.normal({N, padded}, 3), targets = make.tokens({N}, V);
  for (const bool want_gradient : {false, true}) {
    Tensor row_logits[2], losses[2];
    for (const int some : {0, 1}) {
      row_logits[some] = make.copy_of(logits), losses[some] = make.poisoned({N});
      for (const int64_t n : {1, 4, 5})
        if (some) targets.as<int32_t>()[n] = kNoTarget;
      if (some) floats(row_logits[some])[4 * padded + 2] = NAN;
      cpu.run(CrossEntropy{.logits = row_logits[some],
                           .targets = targets,
                           .losses = losses[some],
                           .vocab_size = V,
                           .want_gradient = want_gradient,
                           .gradient_scale = make.scalar(0.25f)});
    }
    for (const int64_t n : {0, 2, 3}) {
      EXPECT_EQ(floats(losses[1])[n], floats(losses[0])[n]);
      expect_same_bits(row_logits[1].rows(n, 1), row_logits[0].rows(n, 1), "a row with a target");
    }
    for (const int64_t n : {1, 4, 5}) {
      EXPECT_EQ(floats(losses[1])[n], 0);
      for (int64_t v = 0; want_gradient && v < padded; ++v)
        EXPECT_EQ(floats(row_logits[1])[n * padded + v], 0);
    }
    for (const int64_t n : {1, 4, 5}) targets.as<int32_t>()[n] = 3;
  }
}

TEST_F(Ops, CrossEntropyOfHugeLogitsIsFinite) {
  const Tensor logits = make.normal({4, 8}, 1e4), targets = make.tokens({4}, 8), losses = make.poisoned({4});
  cpu.run(CrossEntropy{
      .logits = logits, .targets = targets, .losses = losses, .vocab_size = 8, .want_gradient = true});
  for (const float l : floats(losses)) EXPECT_TRUE(std::isfinite(l));
  for (const float g : floats(logits)) EXPECT_TRUE(std::isfinite(g));
}

TEST_F(Ops, AccumulateAddsEachElement) {
  for (const int64_t count : {1, 7, 100'003}) {
    const Tensor x = make.normal({count}), y = make.normal({count}), before = make.copy_of(y);
    cpu.run(Accumulate{.x = x, .y = y});
    for (int64_t i = 0; i < count; ++i)
      ASSERT_EQ(y.as<float>()[i], before.as<float>()[i] + x.as<float>()[i]) << i;
  }
  const std::string refusal =
      message_of([&] { cpu.run(Accumulate{.x = make.normal({3}), .y = make.normal({4})}); });
  EXPECT_NE(refusal.find("x must be fp32 [4] on cpu"), std::string::npos) << refusal;
}

TEST_F(Ops, GlobalNormIsTheNormOfEverything) {
  const std::vector<Tensor> tensors{make.normal({70000}), make.normal({3, 5}), make.normal({1})};
  const Tensor norm = make.poisoned({1});
  cpu.run(GlobalNorm{.tensors = tensors, .norm = norm});
  double sum = 0;
  for (const Tensor& t : tensors) sum += dot(t, t);
  EXPECT_NEAR(floats(norm)[0], std::sqrt(sum), 1e-4);
}

TEST_F(Ops, InspectFindsRangesAndBadValues) {
  const Tensor x = make.normal({2, 3, 4, 8});
  float* values = x.as<float>();
  values[1 * 96 + 2 * 32 + 1 * 8 + 5] = -70;
  values[17] = 90;
  std::array<int32_t, kInspectedWords> words{};
  const auto inspect = [&](int64_t row, int64_t first, int64_t count) {
    cpu.run(Inspect{.x = x,
                    .row = row,
                    .first = first,
                    .count = count,
                    .result = {words.data(), DType::kI32, {kInspectedWords}, Device::kCpu}});
    return std::bit_cast<Inspected>(words);
  };
  const auto value = [](int32_t order) { return std::bit_cast<float>(order_of(order)); };
  Inspected found = inspect(0, 0, 0);
  EXPECT_EQ(value(found.least), -70);
  EXPECT_EQ(value(found.largest), 90);
  EXPECT_EQ(found.bad, 0u);
  values[40] = NAN, values[41] = -INFINITY, values[17] = INFINITY;
  found = inspect(0, 0, 0);
  EXPECT_EQ(found.bad, 3u);
  EXPECT_EQ(found.first_bad, 17u);
  EXPECT_LT(value(found.largest), 90);
  found = inspect(32, 8, 8);  // head 1 of 4
  EXPECT_EQ(found.bad, 2u);
  EXPECT_EQ(found.first_bad, 40u);
  EXPECT_EQ(value(found.least), -70);
  EXPECT_GT(value(inspect(32, 0, 8).least), -70);
}

TEST_F(Ops, WrongArgumentsAreNamed) {
  const Tensor x = make.normal({4, 3}), w = make.normal({2, 3});
  try {
    cpu.run(LinearForward{.x = x, .weight = w, .y = make.zeros({4, 3})});
    FAIL() << "a wrong output shape was taken";
  } catch (const Error& error) {
    EXPECT_TRUE(
        says(std::string(error.what()), {"linear forward: y ", "fp32 [4, 2] on cpu", "found fp32 [4, 3]"}));
  }
}

// What the message of a refusal holds.
template <class Op>
void expect_refused(const Stream& stream, const Op& op, std::initializer_list<std::string_view> words) {
  try {
    stream.run(op);
    FAIL() << op.kName << " was run: " << *words.begin();
  } catch (const Error& error) {
    EXPECT_TRUE(says(error.what(), words));
  }
}

TEST_F(Ops, ScratchThatIsTooSmallIsRefusedWithTheNumbers) {
  const Tensor x = make.normal({7}), norm = make.zeros({1});
  const GlobalNorm op{.tensors = {&x, 1}, .norm = norm};
  expect_refused(Stream(cpu.backend()), op, {"gradient norm: needs 32768 bytes", "found 0"});
  expect_refused(Stream(cpu.backend(), make.zeros({8191})), op, {"needs 32768 bytes", "found 32764"});
  Stream(cpu.backend(), make.zeros({8192})).run(op);
}

TEST_F(Ops, WorkspaceOfAnotherDeviceIsRefused) {
  const Tensor x = make.normal({7});
  Tensor elsewhere = make.zeros({8});
  elsewhere.device = Device::kCuda;
  expect_refused(Stream(cpu.backend(), elsewhere), FillZero{x}, {"fill zero: ", "workspace", "on cpu"});
}

// Every operation passes the observers, on either side of its work.
TEST_F(Ops, ObserversSeeEveryOperation) {
  struct Log final : OpObserver {
    void before(const AnyOp& op, Backend&, const Launch&) override {
      seen += fmt::format("{} of {}, ", name_of(op), watched[0]);
    }
    void after(const AnyOp& op, Backend&, const Launch&) override {
      seen += fmt::format("{} gave {}; ", name_of(op), watched[0]);
    }
    std::string seen;
    std::span<const float> watched;
  } log;
  const Tensor x = make.normal({5}), ones = make.zeros({5});
  for (float& one : floats(ones)) one = 1;
  log.watched = floats(x);
  floats(x)[0] = 3;
  cpu.backend().add_observer(log);
  cpu.run(Copy{ones, x});
  cpu.run(FillZero{x});
  cpu.backend().remove_observer(log);
  cpu.run(Copy{ones, x});
  EXPECT_EQ(log.seen, "copy of 3, copy gave 1; fill zero of 1, fill zero gave 0; ");
}

// A plan takes what the device would take, and refuses what it would refuse.
TEST_F(Ops, PlansAreChecked) {
  const std::unique_ptr<Backend> plan = make_plan_backend({});
  const Stream stream(*plan);
  const Tensor x{nullptr, DType::kF32, {4, 3}, Device::kCpu}, y{nullptr, DType::kF32, {4, 2}, Device::kCpu};
  stream.run(LinearForward{.x = x, .weight = {nullptr, DType::kF32, {2, 3}, Device::kCpu}, .y = y});
  expect_refused(stream, LinearForward{.x = x, .weight = x, .y = y}, {"linear forward: y ", "fp32 [4, 4]"});
}

TEST_F(Ops, SameArgumentsSameBits) {
  const Tensor x = make.normal({129, 65}), w = make.normal({127, 65}), dy = make.normal({129, 127});
  std::vector<Tensor> results;
  for (int i = 0; i < 2; ++i) {
    const Tensor dx = make.poisoned({129, 65}), dw = make.zeros({127, 65}), db = make.zeros({127});
    cpu.run(LinearBackward{.dy = dy, .x = x, .weight = w, .dx = dx, .dweight = dw, .dbias = db});
    for (const Tensor& t : {dx, dw, db}) results.push_back(t);
  }
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(std::memcmp(results[i].data, results[i + 3].data, results[i].bytes()), 0);
}

}  // namespace
}  // namespace tessera::testing
