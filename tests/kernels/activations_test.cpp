// The activations and their derivatives against the formulas in fp64, by every set of functions of a device.
#include "kernels/activations.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace tessera {
namespace {

struct WithTanh {
  static float tanh(float x) { return std::tanh(x); }
};
struct WithExp {
  static float exp(float x) { return std::exp(x); }
  static float normal_cdf(float x) { return 0.5f * std::erfc(-0.707106781f * x); }
};
struct InFewInstructions {
  static float exp2(float x) { return std::exp2(x); }
  static float reciprocal(float x) { return 1 / x; }
};

double tanh_gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + static_cast<double>(0.044715f) * x * x * x)));
}
double exact_gelu(double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }

template <class A>
void expect_is(const std::function<double(double)>& formula) {
  constexpr double kError = 1e-6, kStep = 1e-4;
  for (double x = -12; x <= 12; x += 1.0 / 64) {
    const auto at = static_cast<float>(x);
    EXPECT_NEAR(A::value(at), formula(x), kError * (1 + std::abs(x))) << x;
    EXPECT_NEAR(A::derivative(at), (formula(x + kStep) - formula(x - kStep)) / (2 * kStep), 4 * kError) << x;
  }
  EXPECT_TRUE(std::isnan(A::value(NAN)));
}

TEST(Activations, AreTheFormulasOnEveryDevice) {
  expect_is<TanhGelu<WithTanh>>(tanh_gelu);
  expect_is<TanhGelu<WithExp>>(tanh_gelu);
  expect_is<FastTanhGelu<InFewInstructions>>(tanh_gelu);
  expect_is<ExactGelu<WithExp>>(exact_gelu);
  expect_is<FastExactGelu<InFewInstructions>>(exact_gelu);
}

TEST(Activations, SquaredReluIsTheSquareOfRelu) {
  for (float x = -12; x <= 12; x += 1.0f / 64) {  // whole numbers of 64ths: exact
    EXPECT_EQ(SquaredRelu::value(x), x > 0 ? x * x : 0) << x;
    EXPECT_EQ(SquaredRelu::derivative(x), x > 0 ? 2 * x : 0) << x;
  }
  EXPECT_TRUE(std::isnan(SquaredRelu::value(NAN)));
}

TEST(Activations, ReluHasNoSlopeAtZero) {
  EXPECT_EQ(Relu::value(-1), 0);
  EXPECT_EQ(Relu::value(2), 2);
  EXPECT_EQ(Relu::derivative(0), 0);
  EXPECT_EQ(Relu::derivative(2), 1);
  EXPECT_TRUE(std::isnan(Relu::value(NAN)));
}

}  // namespace
}  // namespace tessera
