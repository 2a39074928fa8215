#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>

#include "kernels/base/four_bits.h"
#include "kernels/base/fp8.h"
#include "kernels/base/fp8_scale.h"
#include "kernels/base/small_scales.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/fp8_values.h"

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

// y = scale round(x / scale), and its transpose, where they have room
void round_all(const Tensor& x, DType format, const Fp8Matrix& y, const Tensor& transposed = {}) {
  const int64_t C = x.shape[-1], rows = x.numel() / C, N = transposed ? x.shape[-2] : rows;
  const Fp8Format numbers = fp8_format(format);
  const float scale = *y.scale.as<float>(), inverse = 1 / scale;  // exact: a power of two
  const float* from = x.as<float>();
  auto *to = y.data ? y.data.as<float>() : nullptr, *columns = transposed ? transposed.as<float>() : nullptr;
#pragma omp parallel for
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t c = 0; c < C; ++c) {
      const float rounded = scale * round_to_fp8(from[row * C + c] * inverse, numbers);
      if (to) to[row * C + c] = rounded;
      if (columns) columns[row / N * N * C + c * N + row % N] = rounded;
    }
}

void note_largest(uint32_t found, const Tensor& amax) {
  float& largest = *amax.as<float>();
  largest = std::bit_cast<float>(std::max(std::bit_cast<uint32_t>(largest), found));
}

}  // namespace

void write_fp8(const Tensor& x, DType format, const Fp8Output& output) {
  if (!output) return;
  round_all(x, format, output.y);
  note_largest(largest_magnitude(x), output.amax);
}

void run(const Quantise& a, const Launch& /*on*/) {
  if (a.amax || a.current) {
    const uint32_t found = largest_magnitude(a.x);
    if (a.current)
      *a.y.scale.as<float>() = std::bit_cast<float>(fp8_scale(found, a.format == DType::kE4M3, 0));
    if (a.amax) note_largest(found, a.amax);
  }
  if (a.y.data || a.transposed) round_all(a.x, a.format, a.y, a.transposed);
}

void run(const CountSaturated& a, const Launch& /*on*/) {
  const float largest = fp8_largest(*a.scale.as<float>(), a.format == DType::kE4M3);
  const float* values = a.x.as<float>();
  const int64_t elements = a.x.numel();
  uint64_t found = 0;
#pragma omp parallel for reduction(+ : found)
  for (int64_t i = 0; i < elements; ++i) found += std::fabs(values[i]) > largest ? 1 : 0;
  uint64_t count = 0;
  std::memcpy(&count, a.count.data, sizeof count);
  count += found;
  std::memcpy(a.count.data, &count, sizeof count);
}

// The scale is in the values already.
void run(const Dequantise& a, const Launch& /*on*/) {
  std::copy_n(a.x.data.as<float>(), a.y.numel(), a.y.as<float>());
}

void run(const RoundToFourBits& a, const Launch& /*on*/) {
  with_four_bits(a.y.format, [&]<class Format>() {
    constexpr int kBlock = Format::kBlock;
    const ScalePlaces<Format> places(a.x.shape[1]);
    const int64_t blocks = a.x.numel() / kBlock;
#pragma omp parallel for
    for (int64_t b = 0; b < blocks; ++b) {
      const float* x = a.x.as<float>() + b * kBlock;
      uint8_t* bytes = a.y.data.as<uint8_t>() + b * (kBlock / 2);
      uint32_t largest = 0;
      for (int i = 0; i < kBlock; ++i) largest = std::max(largest, magnitude(x[i]));
      const auto scale = Format::scale(largest);
      a.y.scales.as<typename Format::Scale>()[places.of(b)] = scale;
      const float inverse = Format::inverse(scale);
      for (int i = 0; i < kBlock; i += 2)
        bytes[i / 2] = static_cast<uint8_t>(Format::code(x[i] * inverse) << Format::kEvenShift |
                                            Format::code(x[i + 1] * inverse) << Format::kOddShift);
    }
  });
}

namespace {

constexpr std::array<float, 256> kSmallScaleValues = [] {
  std::array<float, 256> values{};
  for (int code = 0; code < 256; ++code) values[static_cast<size_t>(code)] = small_scale_value(code);
  return values;
}();

float mean_of(std::span<const float> scales) {
  double sum = 0;
  for (size_t lane = 0; lane < kMeanLanes; ++lane) {
    double of_lane = 0;
    for (size_t i = lane; i < scales.size(); i += kMeanLanes) of_lane += static_cast<double>(scales[i]);
    sum += of_lane;
  }
  return static_cast<float>(sum / static_cast<double>(scales.size()));
}

}  // namespace

void run(const RoundScales& a, const Launch& /*on*/) {
  const SmallScalePlaces places(a.scales);
  const std::span<const float> x(a.x.as<float>(), static_cast<size_t>(a.x.numel()));
  auto *codes = a.y.as<uint8_t>(), *end = reinterpret_cast<uint8_t*>(a.y.as<float>() + places.largest_at());
  std::fill(codes + x.size(), end, uint8_t{0});
  for (int m = 0; m < places.matrices; ++m) {
    const auto first = static_cast<size_t>(places.first[m]);
    const auto count = static_cast<size_t>(places.first[m + 1]) - first;
    const float mean = a.y.as<float>()[places.means_at() + m] = mean_of(x.subspan(first, count));
#pragma omp parallel for
    for (int64_t g = places.groups[m]; g < places.groups[m + 1]; ++g) {
      const size_t begin = first + static_cast<size_t>(g - places.groups[m]) * kScaleGroup;
      const auto group = x.subspan(begin, std::min<size_t>(kScaleGroup, first + count - begin));
      float largest = 0;
      for (const float scale : group) largest = std::max(largest, std::fabs(scale - mean));
      a.y.as<float>()[places.largest_at() + g] = largest;
      for (size_t i = 0; i < group.size(); ++i)
        codes[begin + i] =
            static_cast<uint8_t>(small_scale_code(kSmallScaleValues.data(), group[i] - mean, largest));
    }
  }
}

void run(const WidenFourBits& a, const Launch& /*on*/) {
  with_four_bits(a.x.format, [&]<class Format>() {
    constexpr int kBlock = Format::kBlock;
    const ScalePlaces<Format> places(a.y.shape[1]);
    const SmallScalePlaces small(scales_of_each(a.x.small_scales, a.y.shape[1]));
    const int64_t blocks = a.y.numel() / kBlock;
#pragma omp parallel for
    for (int64_t b = 0; b < blocks; ++b) {
      const uint8_t* bytes = a.x.data.as<uint8_t>() + b * (kBlock / 2);
      const float scale = a.x.has_small_scales()
                              ? small.scale(a.x.scales.as<float>(), kSmallScaleValues.data(), b)
                              : Format::factor(a.x.scales.as<typename Format::Scale>()[places.of(b)]);
      float* y = a.y.as<float>() + b * kBlock;
      for (int i = 0; i < kBlock; i += 2) {
        y[i] = Format::value(bytes[i / 2] >> Format::kEvenShift & 15) * scale;
        y[i + 1] = Format::value(bytes[i / 2] >> Format::kOddShift & 15) * scale;
      }
    }
  });
}

void run(const TransposeFp8& a, const Launch& /*on*/) {
  const int64_t N = a.x.shape[-2], C = a.x.shape[-1], rows = a.y.numel() / N;
  const float* from = a.x.as<float>();
  float* to = a.y.as<float>();
#pragma omp parallel for
  for (int64_t row = 0; row < rows; ++row)  // of y
    for (int64_t n = 0; n < N; ++n) to[row * N + n] = from[row / C * C * N + n * C + row % C];
}

void run(const UpdateScales& a, const Launch& /*on*/) {
  const int64_t R = a.amax.shape[0], S = a.scale.shape[1], count = a.scale.shape[0] * S;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t largest = 0;
    for (int64_t r = 0; r < R; ++r) largest = std::max(largest, magnitude(a.amax.as<float>()[r * count + i]));
    if (has_fp8_scale(largest) || a.current)
      a.scale.as<float>()[i * kFp8ScaleStride] =
          std::bit_cast<float>(fp8_scale(largest, i < S, a.current ? 0 : fp8_headroom(i < S)));
  }
}

}  // namespace tessera::cpu
