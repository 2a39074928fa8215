// NaN without the sign that it may have: a text says "nan", never "-nan".
#pragma once

#include <cmath>
#include <limits>

namespace tessera {

inline double without_sign_if_nan(double value) {
  return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value;
}

}  // namespace tessera
