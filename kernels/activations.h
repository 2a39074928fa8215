// The activations of the hidden layer and their derivatives, on every device: y = activation(x), y' = dy/dx.
//
//   ReLU         y = max(x, 0)
//   ReLU^2       y = max(x, 0)^2;  y' = 2 max(x, 0)
//   tanh GELU    y = x s with s = (1 + tanh u) / 2, u = sqrt(2 / pi) (x + 0.044715 x^3);
//                y' = s + 2 x s (1 - s) u'
//   exact GELU   y = x Phi(x);  y' = Phi(x) + x phi(x), Phi and phi those of the normal distribution
//
// `Math` has the device's functions, all static. TanhGelu and ExactGelu are as exact as fp32 allows. The
// Fast structs are for results that are rounded to bf16: fewer instructions, errors of some 1e-7.
#pragma once

#include <cmath>

#include "kernels/base/activation.h"
#include "kernels/base/host_device.h"

namespace tessera {

struct Relu {
  static TESSERA_HOST_DEVICE float value(float x) { return x < 0 ? 0 : x; }
  static TESSERA_HOST_DEVICE float derivative(float x) { return x > 0 ? 1 : 0; }
};

struct SquaredRelu {
  static TESSERA_HOST_DEVICE float value(float x) { return Relu::value(x) * Relu::value(x); }
  static TESSERA_HOST_DEVICE float derivative(float x) { return 2 * Relu::value(x); }
};

struct TanhGeluConstants {
  static constexpr float kSqrtTwoOverPi = 0.7978845608028654f, kCubic = 0.044715f;
};
struct ExactGeluConstants {
  static constexpr float kDensity = 0.3989422804014327f;  // 1 / sqrt(2 pi)
};
inline constexpr float kLog2OfE = 1.4426950408889634f;

// Math has tanh(), or exp() alone: s = 1 / (1 + exp(-2 u)).
template <class Math>
struct TanhGelu : TanhGeluConstants {
  static constexpr bool kByTanh = requires { Math::tanh(0.0f); };

  static TESSERA_HOST_DEVICE float argument(float x) { return kSqrtTwoOverPi * (x + kCubic * x * x * x); }
  static TESSERA_HOST_DEVICE float value(float x) {
    if constexpr (kByTanh)
      return 0.5f * x * (1 + Math::tanh(argument(x)));
    else
      return x / (1 + Math::exp(-2 * argument(x)));
  }
  static TESSERA_HOST_DEVICE float derivative(float x) {
    if constexpr (kByTanh) {
      const float t = Math::tanh(argument(x)), du = kSqrtTwoOverPi * (1 + 3 * kCubic * x * x);
      return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * du;
    } else {
      const float s = 1 / (1 + Math::exp(-2 * argument(x)));
      return s + x * s * (1 - s) * 2 * kSqrtTwoOverPi * (1 + 3 * kCubic * x * x);
    }
  }
};

// Math has normal_cdf() and exp().
template <class Math>
struct ExactGelu : ExactGeluConstants {
  static TESSERA_HOST_DEVICE float value(float x) { return x * Math::normal_cdf(x); }
  static TESSERA_HOST_DEVICE float derivative(float x) {
    return Math::normal_cdf(x) + x * kDensity * Math::exp(-0.5f * x * x);
  }
};

// Math has exp2() and reciprocal(). Computing s does not subtract near numbers, as 1 + tanh u would for x far
// below 0.
template <class Math>
struct FastTanhGelu : TanhGeluConstants {
  static TESSERA_HOST_DEVICE float share(float x, float square) {
    constexpr float kLinear = -2 * kSqrtTwoOverPi;
    const float u = x * fmaf(square, kLinear * kCubic * kLog2OfE, kLinear * kLog2OfE);  // -2 u, in octaves
    return Math::reciprocal(1 + Math::exp2(u));
  }
  static TESSERA_HOST_DEVICE float value(float x) { return x * share(x, x * x); }
  static TESSERA_HOST_DEVICE float derivative(float x) {
    const float square = x * x, s = share(x, square);
    return fmaf(x * fmaf(square, 6 * kSqrtTwoOverPi * kCubic, 2 * kSqrtTwoOverPi), fmaf(-s, s, s), s);
  }
};

// x Phi(x) = max(x, 0) - |x| Phi(-|x|). Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26:
// erfc(z) = (a1 t + ... + a5 t^5) exp(-z^2) with t = 1 / (1 + p z), to 1.5e-7 for z >= 0. With z = |x| /
// sqrt(2), exp(-z^2) is phi(x) / kDensity, and Phi(-|x|) = erfc(z) / 2.
template <class Math>
struct FastExactGelu : ExactGeluConstants {
  static constexpr float kRootHalf = 0.7071067811865476f;

  static TESSERA_HOST_DEVICE float bell(float x) { return Math::exp2(x * x * (-0.5f * kLog2OfE)); }
  static TESSERA_HOST_DEVICE float below(float x, float bell) {  // Phi(-|x|)
    const float t = Math::reciprocal(fmaf(fabsf(x), 0.3275911f * kRootHalf, 1.0f));
    float sum = fmaf(t, 0.5f * 1.061405429f, 0.5f * -1.453152027f);
    sum = fmaf(t, sum, 0.5f * 1.421413741f);
    sum = fmaf(t, sum, 0.5f * -0.284496736f);
    return fmaf(t, sum, 0.5f * 0.254829592f) * t * bell;
  }
  static TESSERA_HOST_DEVICE float value(float x) { return fmaf(-fabsf(x), below(x, bell(x)), fmaxf(x, 0)); }
  static TESSERA_HOST_DEVICE float derivative(float x) {
    const float density = bell(x), tail = below(x, density);
    return fmaf(x * kDensity, density, x < 0 ? tail : 1 - tail);
  }
};

// Calls f with the struct of an activation. It is a type, so that loops over it become vector code.
template <class Math, class F>
void with_activation(Activation activation, F&& f) {
  switch (activation) {
    case Activation::kGelu:
      return f(TanhGelu<Math>{});
    case Activation::kGeluExact:
      return f(ExactGelu<Math>{});
    case Activation::kRelu:
      return f(Relu{});
    case Activation::kRelu2:
      return f(SquaredRelu{});
  }
}

}  // namespace tessera
