#include <algorithm>
#include <bit>

#include "kernels/base/fp8.h"
#include "kernels/base/fp8_scale.h"
#include "kernels/cpu/cpu_backend.h"

namespace tessera::cpu {
namespace {

uint32_t magnitude(float x) { return std::bit_cast<uint32_t>(x) & 0x7fffffffu; }

uint32_t largest_magnitude(const Tensor& x) {
  const int64_t count = x.numel();
  const float* values = x.as<float>();
  uint32_t largest = 0;
#pragma omp parallel for reduction(max : largest)
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, magnitude(values[i]));
  return largest;
}

}  // namespace

// y[n, c] = scale round(x[n, c] / scale)
void run(const Quantise& a, const Launch& /*on*/) {
  const int64_t N = a.x.shape[0], C = a.x.shape[1];
  const Fp8Format format = fp8_format(a.format);
  float& scale = *a.y.scale.as<float>();
  if (a.amax || a.current) {
    const uint32_t found = largest_magnitude(a.x);
    if (a.current) scale = std::bit_cast<float>(fp8_scale(found, a.format == DType::kE4M3, 0));
    if (a.amax) {
      float& amax = *a.amax.as<float>();
      amax = std::bit_cast<float>(std::max(std::bit_cast<uint32_t>(amax), found));
    }
  }
  const float by = scale, inverse = 1 / by;  // exact: a power of two
#pragma omp parallel for
  for (int64_t n = 0; n < N; ++n) {
    const float* x = a.x.as<float>() + n * C;
    float* y = a.y.data.as<float>() + n * C;
    for (int64_t c = 0; c < C; ++c) y[c] = by * round_to_fp8(x[c] * inverse, format);
    if (!a.transposed) continue;
    for (int64_t c = 0; c < C; ++c) a.transposed.as<float>()[c * N + n] = y[c];
  }
}

void run(const UpdateScales& a, const Launch& /*on*/) {
  const int64_t R = a.amax.shape[0], S = a.scale.shape[1];
  for (int64_t i = 0; i < 2 * S; ++i) {
    uint32_t largest = 0;
    for (int64_t r = 0; r < R; ++r) largest = std::max(largest, magnitude(a.amax.as<float>()[r * 2 * S + i]));
    if (has_fp8_scale(largest))
      a.scale.as<float>()[i] = std::bit_cast<float>(fp8_scale(largest, i < S, fp8_headroom(i < S)));
  }
}

}  // namespace tessera::cpu
