// The soft cap of logits, on every device: y = c tanh(l / c), and y' = dy/dl = 1 - (y / c)^2.
//
// For |u| below 1/4, tanh u is the series u - u^3/3 + 2 u^5/15 - 17 u^7/315 + 62 u^9/2835, so that logits far
// below the cap keep their digits. For larger |u|, tanh |u| = (1 - e) / (1 + e) with e = exp(-2 |u|). NaN
// stays NaN.
#pragma once

#include <cmath>

#include "kernels/base/host_device.h"

namespace tessera {

// Math has the device's exp() and reciprocal(), both static.
template <class Math>
struct LogitCap {
  float cap, inverse;

  explicit LogitCap(float at) : cap(at), inverse(1 / at) {}

  TESSERA_HOST_DEVICE float value(float l) const {
    constexpr float kSeriesEnd = 0.25f;
    const float u = l * inverse, size = fabsf(u), square = u * u, e = Math::exp(-2 * size);
    float series = 62.0f / 2835;
    series = series * square - 17.0f / 315;
    series = series * square + 2.0f / 15;
    series = series * square - 1.0f / 3;
    const float far = copysignf((1 - e) * Math::reciprocal(1 + e), u);
    return cap * (size < kSeriesEnd ? u + u * (square * series) : far);
  }
  TESSERA_HOST_DEVICE float derivative(float value) const {
    const float t = value * inverse;
    return 1 - t * t;
  }
};

}  // namespace tessera
