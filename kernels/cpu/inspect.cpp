#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/base/bf16.h"
#include "kernels/base/fp8.h"
#include "kernels/cpu/cpu_backend.h"

namespace tessera::cpu {
namespace {

float element(const Tensor& x, int64_t i) {
  if (x.dtype == DType::kF32) return x.as<float>()[i];
  if (x.dtype == DType::kBF16) return float_from_bf16(x.as<uint16_t>()[i]);
  return float_from_fp8(x.as<uint8_t>()[i], x.dtype);
}

}  // namespace

void run(const Inspect& a, const Launch& /*on*/) {
  const int64_t all = a.x.numel(), row = a.row == 0 ? all : a.row, count = a.row == 0 ? all : a.count;
  Inspected found;
  for (int64_t begin = a.first; begin < all; begin += row)
    for (int64_t i = begin; i < begin + count; ++i) {
      const float value = element(a.x, i);
      if (std::isfinite(value)) {
        const int32_t order = order_of(std::bit_cast<int32_t>(value));
        found.least = std::min(found.least, order), found.largest = std::max(found.largest, order);
      } else {
        ++found.bad;
        found.first_bad = std::min(found.first_bad, static_cast<uint64_t>(i));
      }
    }
  std::memcpy(a.result.data, &found, sizeof found);
}

}  // namespace tessera::cpu
