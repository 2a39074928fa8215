// How far two computations of the same values may lie apart: the derivations. Differences are the L2 norm of
// the difference, relative to that of the reference.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/base/tensor.h"

namespace tessera::allowed {

// Half a unit in the last place: what one rounding to nearest does to a number just below a power of two
constexpr double rounding(DType dtype) { return dtype == DType::kBF16 ? 0x1p-9 : 0x1p-24; }

// The error of one operation. In bf16 the result is rounded once, and its sums are fp32. In fp32 a sum of
// 1000 products is a random walk of sqrt(1000) = 32 roundings.
constexpr double of_operation(DType dtype) { return dtype == DType::kBF16 ? rounding(dtype) : 32 * 0x1p-24; }

// Losses and gradients of a model of `layers` blocks, computed in two ways that are equal but for rounding. A
// gradient has passed some 12 operations a block, forward and backward, and two blocks' worth at the two
// ends. Their errors are independent, so that they add up as a random walk; both computations have theirs,
// which is another sqrt(2); and twice that for what lies two deviations out.
inline double of_model(DType dtype, int64_t layers) {
  return 2 * std::sqrt(2 * 12 * static_cast<double>(layers + 2)) * of_operation(dtype);
}
inline constexpr const char* kModelReason =
    "2 sqrt(24 (L + 2)) roundings of an operation: two walks of 12 operations a block";

// The error of a kernel beside naive's: a tenth more, as the user may set, and what chance does to the ratio
// of two norms of `elements` random errors, which has a deviation of 1 / sqrt(elements): four of these. And
// the result is rounded once, whatever the kernel.
inline double beside_naive(double naive_error, double ratio, int64_t elements, DType dtype) {
  return naive_error * ratio * (1 + 4 / std::sqrt(static_cast<double>(elements))) + rounding(dtype);
}
inline constexpr const char* kRatioReason =
    "naive's own error times the ratio, four deviations of chance, and one rounding of the result";

// Rows that are computed again in fp64: the error that each rounding inside the kernel is expected to cause
// is summed beside the row itself (row_check.cpp). Roundings are uniform, so that this is 1.7 times what is
// found on average; two such deviations, and a half as much again for kernels that round twice.
inline constexpr double kOfExpectedRowError = 3;
inline constexpr const char* kRowReason =
    "3 times what the roundings inside the kernel are expected to cause, summed beside each row";

// A tensor whose gradient nearly cancels, as that of a bias that the softmax does not see, has no relative
// error. Its norm counts as at least this share of the root mean square of the whole gradient.
inline constexpr double kSmallGradient = 1e-3;

}  // namespace tessera::allowed
