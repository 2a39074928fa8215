// Orthogonal matrices as Muon makes them, in fp64 and plain loops.
#pragma once

#include <array>
#include <cmath>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "tests/masters.h"
#include "tests/support.h"

namespace tessera::testing {

struct MuonReference {
  std::array<Orthogonalise::Polynomial, 5> polynomials;
  double margin;
};
inline MuonReference with_margin(const MuonReference& of) {
  MuonReference with = of;
  for (Orthogonalise::Polynomial& p : with.polynomials)
    p.a /= of.margin, p.b /= std::pow(of.margin, 3), p.c /= std::pow(of.margin, 5);
  return with;
}
inline const MuonReference kPolarExpressReference =
    with_margin({{{{8.28721201814563, -23.595886519098837, 17.300387312530933},
                   {4.107059111542203, -2.9478499167379106, 0.5448431082926601},
                   {3.9486908534822946, -2.908902115962949, 0.5518191394370137},
                   {3.3184196573706015, -2.488488024314874, 0.51004894012372},
                   {2.300652019954817, -1.6689039845747493, 0.4188073119525673}}},
                 1.01});
inline constexpr Orthogonalise::Polynomial kQuinticReference = {3.4445, -4.7750, 2.0315};
inline const MuonReference kNewtonSchulzReference = {
    {kQuinticReference, kQuinticReference, kQuinticReference, kQuinticReference, kQuinticReference}, 1};

// The sum over k of a[i, k] b[k, j]
inline std::vector<double> product(const std::vector<double>& a, const std::vector<double>& b, int64_t m,
                                   int64_t k, int64_t n) {
  std::vector<double> c(static_cast<size_t>(m * n));
  for (int64_t i = 0; i < m; ++i)
    for (int64_t t = 0; t < k; ++t)
      for (int64_t j = 0; j < n; ++j) c[i * n + j] += a[i * k + t] * b[t * n + j];
  return c;
}

enum class Rounded : uint8_t { kNo, kToBf16 };

// The matrix after the polynomials of the reference, times scale; with the result of each product rounded
inline std::vector<double> orthogonal_reference(const std::vector<double>& matrix, int64_t rows,
                                                int64_t columns, const MuonReference& of, double scale,
                                                Rounded rounded = Rounded::kNo) {
  const bool tall = rows > columns;
  const int64_t m = std::min(rows, columns), n = std::max(rows, columns);
  const auto at = [&](int64_t i, int64_t j) { return tall ? j * columns + i : i * columns + j; };
  const auto round = [&](double value) {
    return rounded == Rounded::kNo ? value : nearest_bf16(static_cast<float>(value));
  };
  double squares = 0;
  for (const double value : matrix) squares += value * value;
  std::vector<double> x(matrix.size()), xt(matrix.size());
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j)
      x[i * n + j] = squares > 0 ? round(matrix[at(i, j)] / (of.margin * std::sqrt(squares))) : 0;
  for (size_t k = 0; k < of.polynomials.size(); ++k) {
    const auto [pa, pb, pc] = of.polynomials[k];
    const double last = k + 1 == of.polynomials.size() ? scale : 1;
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) xt[j * m + i] = x[i * n + j];
    std::vector<double> a = product(x, xt, m, n, m);
    for (double& value : a) value = round(value);
    std::vector<double> b = product(a, a, m, m, m);
    for (size_t i = 0; i < a.size(); ++i) b[i] = round(pb * a[i] + pc * b[i]);
    const std::vector<double> bx = product(b, x, m, m, n);
    for (size_t i = 0; i < x.size(); ++i) x[i] = round(last * (pa * x[i] + bx[i]));
  }
  std::vector<double> result(matrix.size());
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) result[at(i, j)] = x[i * n + j];
  return result;
}
inline std::vector<double> orthogonal_reference(const Tensor& matrix, const MuonReference& of, double scale,
                                                Rounded rounded = Rounded::kNo) {
  return orthogonal_reference({floats(matrix).begin(), floats(matrix).end()}, matrix.shape[0],
                              matrix.shape[1], of, scale, rounded);
}

// The root of the sum of squared differences, relative to that of the expected values
inline double relative_error(std::span<const float> found, std::span<const double> expected) {
  double error = 0, size = 0;
  for (size_t i = 0; i < expected.size(); ++i)
    error += std::pow(found[i] - expected[i], 2), size += expected[i] * expected[i];
  return std::sqrt(error / size);
}

}  // namespace tessera::testing
