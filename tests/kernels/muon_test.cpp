// Muon on the CPU: its formulas in fp64, and what it leaves alone.
#include <cstring>
#include <limits>

#include "kernels/base/bf16.h"
#include "kernels/gemm/orthogonal_gemms.h"
#include "tests/muon_reference.h"
#include "tests/says.h"
#include "tests/support.h"

namespace tessera::testing {
namespace {

struct MuonOnCpu : ::testing::Test {
  HostTensors make;
  CpuStream cpu;

  Tensor one(float value) {
    const Tensor t = make.zeros({1});
    floats(t)[0] = value;
    return t;
  }
  Tensor orthogonal(const Tensor& matrix, std::span<const Orthogonalise::Polynomial> polynomials,
                    double margin = 1, double scale = 1) {
    const auto larger = static_cast<double>(std::max(matrix.shape[0], matrix.shape[1]));
    const Tensor result = make.empty(matrix.shape);
    cpu.run(Copy{matrix, result});
    const Tensor room = make.empty({Orthogonalise::room_for(matrix.shape[0], matrix.shape[1])});
    cpu.run(Orthogonalise{.matrices = {&result, 1},
                          .room = room,
                          .polynomials = polynomials,
                          .margin = margin,
                          .rms = scale / std::sqrt(larger)});
    return result;
  }
};

// Three steps, of which the gradients of the second one are clipped
TEST_F(MuonOnCpu, TheDirectionIsItsFormula) {
  const int64_t n = 37;
  const Tensor mean = make.zeros({n}), direction = make.zeros({n});
  std::vector<double> expected(n);
  for (int step = 1; step <= 3; ++step) {
    const Tensor gradient = make.normal({n});
    const float norm = step == 2 ? 4.0f : 0.5f;
    cpu.run(MuonMomentum{.gradient = gradient,
                         .mean = mean,
                         .direction = direction,
                         .grad_norm = one(norm),
                         .max_norm = 1,
                         .momentum = 0.9,
                         .step = step});
    for (int64_t i = 0; i < n; ++i) {
      const double g = floats(gradient)[i] * (step == 2 ? 1 / (4 + 1e-6) : 1.0);
      expected[i] = 0.9 * expected[i] + 0.1 * g;
      EXPECT_NEAR(floats(mean)[i], expected[i], 1e-6);
      EXPECT_NEAR(floats(direction)[i], 0.9 * expected[i] + 0.1 * g, 1e-6);
    }
  }
}

TEST_F(MuonOnCpu, MeansInBf16KeepTheirExpectation) {
  const int64_t n = 4096;
  const Tensor mean = make.empty({n}, DType::kBF16), direction = make.zeros({n}), gradient = make.zeros({n});
  std::memset(mean.data, 0, mean.bytes());
  for (float& g : floats(gradient)) g = 1;
  for (int step = 1; step <= 200; ++step)
    cpu.run(MuonMomentum{.gradient = gradient,
                         .mean = mean,
                         .direction = direction,
                         .grad_norm = one(1),
                         .max_norm = 0,
                         .momentum = 0.99,
                         .step = step,
                         .random_key = 5});
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += float_from_bf16(mean.as<uint16_t>()[i]);
  EXPECT_NEAR(sum / n, 1 - std::pow(0.99, 200), 2e-3);  // to the nearest it would stop at 0.5
}

// Fifteen results of GEMMs are rounded to 2^-24, and later polynomials make small singular values, and their
// roundings, some four times larger: 64 roundings.
TEST_F(MuonOnCpu, AMatrixGoesThroughThePolynomials) {
  for (const auto& [rows, columns] :
       {std::pair{1, 1}, {1, 9}, {9, 1}, {7, 5}, {5, 7}, {33, 17}, {48, 131}, {70, 70}})
    for (const MuonReference& reference : {kPolarExpressReference, kNewtonSchulzReference}) {
      const Tensor matrix = make.normal({rows, columns});
      const Tensor found = orthogonal(matrix, reference.polynomials, reference.margin, 0.7);
      const std::vector<double> expected = orthogonal_reference(matrix, reference, 0.7);
      EXPECT_LT(relative_error(floats(found), expected), 0x1p-18) << rows << " x " << columns;
    }
}

// Singular values of a random wide matrix are far from 0, and end within 16% of 1: so do the norms of its
// rows, and no two rows are alike.
TEST_F(MuonOnCpu, ItsRowsBecomeOrthonormal) {
  const int64_t rows = 24, columns = 96;
  const Tensor found = orthogonal(make.normal({rows, columns}), kPolarExpressReference.polynomials, 1.01);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j <= i; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < columns; ++k)
        sum += static_cast<double>(floats(found)[i * columns + k]) * floats(found)[j * columns + k];
      EXPECT_NEAR(sum, i == j ? 1 : 0, i == j ? 0.3 : 0.15);
    }
}

TEST_F(MuonOnCpu, AMatrixOfZerosStaysSo) {
  const Tensor found = orthogonal(make.zeros({6, 4}), kPolarExpressReference.polynomials, 1.01);
  for (const float x : floats(found)) EXPECT_EQ(x, 0);
}

TEST_F(MuonOnCpu, TheUpdateIsItsFormula) {
  const int64_t n = 41;
  for (const bool cautious : {false, true}) {
    const Tensor p = make.normal({n}), direction = make.normal({n});
    const std::vector<double> before(floats(p).begin(), floats(p).end());
    cpu.run(MuonUpdate{.param = p,
                       .low = {},
                       .direction = direction,
                       .grad_norm = one(1),
                       .learning_rate = 0.02,
                       .weight_decay = 0.1,
                       .cautious = cautious});
    int kept = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double d = floats(direction)[i], decay = !cautious || d * before[i] > 0 ? 0.1 : 0;
      kept += decay == 0;
      EXPECT_NEAR(floats(p)[i], before[i] - 0.02 * (d + decay * before[i]), 1e-6);
    }
    EXPECT_EQ(kept > 0, cautious);
  }
}

TEST_F(MuonOnCpu, RowsBecomeAlikeInLength) {
  const int64_t m = 5, n = 13;
  const Tensor squares = make.zeros({m});
  std::vector<double> kept(m);
  for (int step = 0; step < 3; ++step) {
    const Tensor x = make.normal({m, n});
    for (int64_t i = 0; i < n; ++i) floats(x)[2 * n + i] *= 100;
    std::vector<double> expected(floats(x).begin(), floats(x).end());
    double all = 0;
    for (int64_t row = 0; row < m; ++row) {
      double sum = 0;
      for (int64_t i = row * n; i < (row + 1) * n; ++i) sum += expected[i] * expected[i];
      kept[row] = 0.9 * kept[row] + 0.1 * sum / n;
      for (int64_t i = row * n; i < (row + 1) * n; ++i) {
        expected[i] /= std::sqrt(kept[row]);
        all += expected[i] * expected[i];
      }
    }
    for (double& value : expected) value *= 0.2 * std::sqrt(m * n / all);
    cpu.run(NormaliseRows{.matrix = x, .squares = squares, .beta = 0.9, .rms = 0.2, .grad_norm = one(1)});
    EXPECT_LT(relative_error(floats(x), expected), 1e-6);
    for (int64_t row = 0; row < m; ++row) EXPECT_NEAR(floats(squares)[row] / kept[row], 1, 1e-6);
  }
}

TEST_F(MuonOnCpu, TheNormsAreOfWhatTheUpdateDoes) {
  const int64_t n = 50, first = 7, count = 30;
  const Tensor p = make.normal({n}), direction = make.normal({n}), gradient = make.normal({n}),
               sums = make.poisoned({3});
  const MuonUpdate step{.param = p,
                        .low = {},
                        .direction = direction,
                        .grad_norm = one(2),
                        .learning_rate = 0.02,
                        .weight_decay = 0.1,
                        .cautious = true};
  const std::vector<float> before(floats(p).begin(), floats(p).end());
  cpu.run(MuonNorms{
      .step = step, .gradient = gradient, .max_norm = 1, .first = first, .count = count, .sums = sums});
  EXPECT_TRUE(std::ranges::equal(before, floats(p)));
  cpu.run(step);
  double expected[3] = {};
  for (int64_t i = first; i < first + count; ++i) {
    expected[0] += std::pow(before[i], 2), expected[1] += std::pow(floats(gradient)[i] / (2 + 1e-6), 2);
    expected[2] += std::pow(static_cast<double>(floats(p)[i]) - before[i], 2);
  }
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(floats(sums)[i] / expected[i], 1, 1e-4) << i;
}

TEST_F(MuonOnCpu, AStepThatIsNotMadeChangesNothing) {
  const int64_t n = 16;
  const Tensor skip = one(static_cast<float>(StepVerdict::kAbove)), p = make.normal({n}),
               mean = make.normal({n}), other = make.normal({n});
  const std::vector<float> p_before(floats(p).begin(), floats(p).end()),
      mean_before(floats(mean).begin(), floats(mean).end());
  for (const auto& [norm, verdict] :
       {std::pair{one(std::numeric_limits<float>::infinity()), Tensor{}}, {one(1), skip}}) {
    cpu.run(MuonMomentum{.gradient = other,
                         .mean = mean,
                         .direction = make.zeros({n}),
                         .grad_norm = norm,
                         .max_norm = 1,
                         .momentum = 0.95,
                         .step = 1,
                         .verdict = verdict});
    cpu.run(MuonUpdate{.param = p,
                       .low = {},
                       .direction = other,
                       .grad_norm = norm,
                       .learning_rate = 1,
                       .weight_decay = 1,
                       .verdict = verdict});
  }
  EXPECT_TRUE(std::ranges::equal(p_before, floats(p)));
  EXPECT_TRUE(std::ranges::equal(mean_before, floats(mean)));
}

TEST_F(MuonOnCpu, WhatDoesNotFitIsNamed) {
  const std::array polynomials = {Orthogonalise::Polynomial{1, 0, 0}, Orthogonalise::Polynomial{1, 0, 0}};
  const auto message = [&](const Tensor& matrix, const Tensor& room, size_t count) -> std::string {
    try {
      cpu.run(Orthogonalise{
          .matrices = {&matrix, 1}, .room = room, .polynomials = std::span(polynomials).first(count)});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_TRUE(says(message(make.zeros({4}), make.zeros({999}), 1), {"orthogonalise", "[m, n]"}));
  EXPECT_TRUE(says(message(make.zeros({4, 3}), make.zeros({100}), 1), {"room", "384"}));
  EXPECT_TRUE(says(message(make.zeros({4, 3}), make.zeros({384}), 2), {"odd", "2"}));
}

}  // namespace
}  // namespace tessera::testing
