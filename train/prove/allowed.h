// How far two computations of the same values may differ, and why: the derivations. A difference is the L2
// norm of the difference of two tensors, divided by the norm of the reference.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/base/tensor.h"

namespace tessera::allowed {

// Half a unit in the last place: how much rounding to nearest can change a number just below a power of two
constexpr double rounding(DType dtype) { return dtype == DType::kBF16 ? 0x1p-9 : 0x1p-24; }

// The error of one operation. In bf16 the sums are fp32 and the result is rounded once. In fp32 a sum of 1000
// products is a random walk of sqrt(1000) = 32 roundings.
constexpr double of_operation(DType dtype) { return dtype == DType::kBF16 ? rounding(dtype) : 32 * 0x1p-24; }

// For losses and gradients of a model of `layers` blocks, computed in two ways that differ only in rounding.
// A gradient has passed some 12 operations in each block, forward and backward, and two blocks' worth at the
// two ends. Their errors are independent, so they add up as a random walk. Both computations have such
// errors, which gives another factor of sqrt(2). A last factor of 2 allows for two deviations.
inline double of_model(DType dtype, int64_t layers) {
  return 2 * std::sqrt(2 * 12 * static_cast<double>(layers + 2)) * of_operation(dtype);
}
inline constexpr const char* kModelReason =
    "2 sqrt(24 (L + 2)) roundings of an operation: two walks of 12 operations a block";

// The error of a kernel compared with naive's. It may be a tenth larger (the user may set this), plus what
// chance does to the ratio of two norms of `elements` random errors: this ratio has a deviation of 1 /
// sqrt(elements), and four of these are allowed. In addition the result is rounded once, whatever the kernel
// is.
inline double beside_naive(double naive_error, double ratio, int64_t elements, DType dtype) {
  return naive_error * ratio * (1 + 4 / std::sqrt(static_cast<double>(elements))) + rounding(dtype);
}
inline constexpr const char* kRatioReason =
    "naive's own error times the ratio, four deviations of chance, and one rounding of the result";

// For rows that are computed again in fp64. The error that each rounding inside the kernel is expected to
// cause is summed up together with the row itself (row_check.cpp). The expectation assumes uniform roundings,
// and so is 1.7 times what is found on average. Two such deviations are allowed, and half as much again for
// kernels that round twice.
inline constexpr double kOfExpectedRowError = 3;
inline constexpr const char* kRowReason =
    "3 times what the roundings inside the kernel are expected to cause, summed beside each row";

// A tensor whose gradient nearly cancels has no meaningful relative error; an example is a bias that the
// softmax does not see. So its norm counts as at least this share of the root mean square of the whole
// gradient.
inline constexpr double kSmallGradient = 1e-3;

}  // namespace tessera::allowed
