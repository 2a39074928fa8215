// What tests of an operation against its formula in fp64 need.
#pragma once

#include <string>
#include <vector>

#include "kernels/base/check.h"
#include "tests/support.h"
#include "tests/tolerances.h"

namespace tessera::testing {

using Doubles = std::vector<double>;

inline Doubles doubles(const Tensor& t) { return {floats(t).begin(), floats(t).end()}; }

// Allowed is a share of an element's own size and of the root mean square of all.
inline void expect_formula(const Tensor& got, const Doubles& want, const char* what,
                           double tolerance = tolerance::kCpuOperation) {
  ASSERT_EQ(floats(got).size(), want.size()) << what;
  double squares = 0;
  for (const double w : want) squares += w * w;
  const double rms = std::sqrt(squares / static_cast<double>(want.size()));
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_NEAR(floats(got)[i], want[i], tolerance * (std::abs(want[i]) + rms)) << what << " " << i;
}

inline void expect_same_bits(const Tensor& a, const Tensor& b, const char* what) {
  ASSERT_EQ(a.bytes(), b.bytes()) << what;
  EXPECT_EQ(std::memcmp(a.data, b.data, a.bytes()), 0) << what;
}

// What the operation says when it refuses its arguments
template <class Op>
std::string refusal_of(const Stream& stream, const Op& op) {
  try {
    stream.run(op);
  } catch (const Error& error) {
    return error.what();
  }
  return "was not refused";
}

}  // namespace tessera::testing
