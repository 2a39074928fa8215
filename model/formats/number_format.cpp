#include "model/formats/number_format.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/base/bf16.h"
#include "kernels/base/check.h"
#include "kernels/base/mxfp4.h"

namespace tessera {
namespace {

constexpr size_t kChunk = size_t{1} << 18;  // values that are encoded at a time; a multiple of every block
constexpr size_t kBlock = 32;               // of q8_0 and mxfp4
constexpr size_t kFewValues = size_t{1} << 15;  // one thread handles them faster than several start

struct Q8Block {
  uint16_t scale;  // fp16
  std::array<int8_t, kBlock> numbers;
};
static_assert(sizeof(Q8Block) == 34);

struct Mxfp4Block {
  uint8_t scale;
  std::array<uint8_t, kBlock / 2> codes;
};
static_assert(sizeof(Mxfp4Block) == 17 && kBlock == kMxfp4Block);

template <class Bits>
Bits bits_of(std::span<const std::byte> bytes, size_t i) {
  Bits bits;
  std::memcpy(&bits, bytes.data() + i * sizeof(Bits), sizeof(Bits));
  return bits;
}

// An exponent of ones is NaN or infinity, and infinity without a mantissa. A test of bits without a branch,
// so that the loop vectorises.
template <class Bits>
std::optional<NotFinite> find_not_finite(std::span<const std::byte> bytes, Bits exponent) {
  const size_t count = bytes.size() / sizeof(Bits);
  int bad = 0;
#pragma omp parallel for reduction(| : bad) if (count > kFewValues)
  for (size_t i = 0; i < count; ++i) bad |= (bits_of<Bits>(bytes, i) & exponent) == exponent;
  if (!bad) return {};
  size_t first = 0;
  while ((bits_of<Bits>(bytes, first) & exponent) != exponent) ++first;
  const auto found = bits_of<Bits>(bytes, first);
  constexpr Bits kMagnitude = std::numeric_limits<Bits>::max() / 2;  // all but the sign
  const bool is_infinite = (found & kMagnitude) == exponent;
  return NotFinite{.index = first, .value = !is_infinite ? "nan" : found > kMagnitude ? "-inf" : "inf"};
}

void check_finite(std::span<const float> values, const std::string& name) {
  const auto bad = find_not_finite(NumberFormat::kF32, std::as_bytes(values));
  if (!bad) return;
  fail(
      "{} is not finite: its value {} is {}. The training has diverged: a lower optimizer.learning_rate, a "
      "longer warm-up or clipping (optimizer.max_grad_norm) usually helps",
      name, bad->index, bad->value);
}

// What to do where a value is too large
const char* advice(NumberFormat format) {
  return format == NumberFormat::kBF16 ? "Set checkpoint.dtype=fp32; for ./export, --dtype fp32"
                                       : "bf16 and fp32 hold it: --dtype bf16";
}

template <class Round, class IsFinite>
void encode_halves(std::span<const float> values, std::span<std::byte> out, Round&& round,
                   IsFinite&& is_finite, const std::function<void(size_t)>& refuse) {
  int bad = 0;
#pragma omp parallel for reduction(| : bad) if (values.size() > kFewValues)
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t half = round(values[i]);
    bad |= !is_finite(half);
    std::memcpy(out.data() + 2 * i, &half, 2);
  }
  if (!bad) return;
  for (size_t i = 0; i < values.size(); ++i)
    if (!is_finite(round(values[i]))) refuse(i);
}

Q8Block q8_block(const float* values) {
  float largest = 0;
  for (size_t i = 0; i < kBlock; ++i) largest = std::max(largest, std::abs(values[i]));
  const float scale = largest / 127, inverse = scale > 0 ? 1 / scale : 0;
  Q8Block block{.scale = half_from_float(scale), .numbers = {}};
  for (size_t i = 0; i < kBlock; ++i)
    block.numbers[i] = static_cast<int8_t>(std::lround(values[i] * inverse));
  return block;
}

Mxfp4Block mxfp4_block(const float* values) {
  float largest = 0;
  for (size_t i = 0; i < kBlock; ++i) largest = std::max(largest, std::abs(values[i]));
  Mxfp4Block block{.scale = mxfp4_scale(bits_of_float(largest)), .codes = {}};
  const float inverse = float_of_bits(mxfp4_inverse_bits(block.scale));
  const auto code = [&](size_t i) { return mxfp4_code(values[i] * inverse); };
  for (size_t i = 0; i < kBlock / 2; ++i)
    block.codes[i] = static_cast<uint8_t>(code(i) | code(i + kBlock / 2) << 4);
  return block;
}

void encode_mxfp4(std::span<const float> values, std::span<std::byte> out) {
#pragma omp parallel for if (values.size() > kFewValues)
  for (size_t b = 0; b < values.size() / kBlock; ++b) {
    const Mxfp4Block block = mxfp4_block(values.data() + b * kBlock);
    std::memcpy(out.data() + b * sizeof(block), &block, sizeof(block));
  }
}

void decode_mxfp4(std::span<const std::byte> bytes, std::span<float> out) {
#pragma omp parallel for if (out.size() > kFewValues)
  for (size_t b = 0; b < out.size() / kBlock; ++b) {
    Mxfp4Block block;
    std::memcpy(&block, bytes.data() + b * sizeof(block), sizeof(block));
    const float scale = float_of_bits(mxfp4_scale_bits(block.scale));
    for (size_t i = 0; i < kBlock; ++i) {
      const uint8_t both = block.codes[i % (kBlock / 2)];
      out[b * kBlock + i] = mxfp4_value(i < kBlock / 2 ? both & 15 : both >> 4) * scale;
    }
  }
}

bool half_is_finite(uint16_t half) { return (half & 0x7C00) != 0x7C00; }
bool bf16_is_finite(uint16_t value) { return (value & 0x7F80) != 0x7F80; }

void encode_q8(std::span<const float> values, std::span<std::byte> out,
               const std::function<void(size_t)>& refuse) {
  int bad = 0;
#pragma omp parallel for reduction(| : bad) if (values.size() > kFewValues)
  for (size_t b = 0; b < values.size() / kBlock; ++b) {
    const Q8Block block = q8_block(values.data() + b * kBlock);
    bad |= !half_is_finite(block.scale);
    std::memcpy(out.data() + b * sizeof(block), &block, sizeof(block));
  }
  if (!bad) return;
  const auto largest = std::ranges::max_element(values, {}, [](float x) { return std::abs(x); });
  refuse(static_cast<size_t>(largest - values.begin()));
}

}  // namespace

NumberFormat number_format(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return NumberFormat::kF32;
    case DType::kBF16:
      return NumberFormat::kBF16;
    case DType::kI32:
    case DType::kU16:
    case DType::kE4M3:
    case DType::kE5M2:
      break;
  }
  fail("weights are not stored in {}", name_of(dtype));
}

std::optional<NotFinite> find_not_finite(NumberFormat format, std::span<const std::byte> bytes) {
  switch (format) {
    case NumberFormat::kF32:
      return find_not_finite<uint32_t>(bytes, 0x7F800000);
    case NumberFormat::kF16:
      return find_not_finite<uint16_t>(bytes, 0x7C00);
    case NumberFormat::kBF16:
      return find_not_finite<uint16_t>(bytes, 0x7F80);
    case NumberFormat::kQ8:
    case NumberFormat::kMxfp4:
      break;
  }
  fail("values of {} are not looked at", name_of(format));
}

int64_t block_of(NumberFormat format) {
  return format == NumberFormat::kQ8 || format == NumberFormat::kMxfp4 ? static_cast<int64_t>(kBlock) : 1;
}

int64_t bytes_of(NumberFormat format, int64_t elements) {
  switch (format) {
    case NumberFormat::kF32:
      return 4 * elements;
    case NumberFormat::kF16:
    case NumberFormat::kBF16:
      return 2 * elements;
    case NumberFormat::kQ8:
      check(elements % block_of(format) == 0, "{} values do not fill blocks of {}", elements,
            block_of(format));
      return elements / block_of(format) * static_cast<int64_t>(sizeof(Q8Block));
    case NumberFormat::kMxfp4:
      check(elements % block_of(format) == 0, "{} values do not fill blocks of {}", elements,
            block_of(format));
      return elements / block_of(format) * static_cast<int64_t>(sizeof(Mxfp4Block));
  }
  fail("unknown format of numbers {}", static_cast<int>(format));
}

uint16_t half_from_float(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  constexpr uint32_t kInfinity = 0x7F800000u, kTwoTo16 = 0x47800000u, kSmallestNormal = 0x38800000u;
  if (magnitude > kInfinity) return static_cast<uint16_t>(sign | 0x7E00);
  if (magnitude >= kTwoTo16) return static_cast<uint16_t>(sign | 0x7C00);
  if (magnitude < kSmallestNormal)  // a multiple of 2^-24; the processor rounds to nearest even
    return static_cast<uint16_t>(
        sign | static_cast<uint16_t>(std::nearbyint(std::bit_cast<float>(magnitude) * 0x1p24f)));
  // 13 bits of the mantissa go; a carry into the exponent is right, up to infinity.
  const uint32_t rounded = magnitude + 0xFFFu + (magnitude >> 13 & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

float float_from_half(uint16_t half) {
  const int exponent = (half >> 10) & 31, mantissa = half & 1023;
  const float magnitude = exponent == 0    ? std::ldexp(static_cast<float>(mantissa), -24)
                          : exponent == 31 ? (mantissa ? std::nanf("") : INFINITY)
                                           : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  return half & 0x8000 ? -magnitude : magnitude;
}

void encode(NumberFormat format, std::span<const float> values, const std::string& name,
            const std::function<void(std::span<const std::byte>)>& visit, Values which) {
  if (which == Values::kFinite) check_finite(values, name);
  if (format == NumberFormat::kF32) return visit(std::as_bytes(values));
  std::vector<std::byte> bytes;
  for (size_t at = 0; at < values.size(); at += kChunk) {
    const std::span<const float> chunk = values.subspan(at, std::min(kChunk, values.size() - at));
    bytes.resize(static_cast<size_t>(bytes_of(format, std::ssize(chunk))));
    const auto refuse = [&](size_t i) {
      fail("{}: its value {} is {}, too large for {}. {}", name, at + i, chunk[i], name_of(format),
           advice(format));
    };
    switch (format) {
      case NumberFormat::kF32:
        break;
      case NumberFormat::kF16:
        encode_halves(chunk, bytes, half_from_float, half_is_finite, refuse);
        break;
      case NumberFormat::kBF16:
        encode_halves(chunk, bytes, bf16_from_float, bf16_is_finite, refuse);
        break;
      case NumberFormat::kQ8:
        encode_q8(chunk, bytes, refuse);
        break;
      case NumberFormat::kMxfp4:
        encode_mxfp4(chunk, bytes);
        break;
    }
    visit(bytes);
  }
}

void decode(NumberFormat format, std::span<const std::byte> bytes, std::span<float> out) {
  check(std::ssize(bytes) == bytes_of(format, std::ssize(out)), "{} bytes do not hold {} values of {}",
        bytes.size(), out.size(), name_of(format));
  if (format == NumberFormat::kF32) return copy_bytes(bytes, std::as_writable_bytes(out).data());
  if (format == NumberFormat::kMxfp4) return decode_mxfp4(bytes, out);
  if (format == NumberFormat::kQ8) {
#pragma omp parallel for if (out.size() > kFewValues)
    for (size_t i = 0; i < out.size(); ++i) {
      Q8Block block;
      std::memcpy(&block, bytes.data() + i / kBlock * sizeof(block), sizeof(block));
      out[i] = float_from_half(block.scale) * block.numbers[i % kBlock];
    }
    return;
  }
  const auto widen = [&](auto&& value_of) {
#pragma omp parallel for if (out.size() > kFewValues)
    for (size_t i = 0; i < out.size(); ++i) {
      uint16_t half;
      std::memcpy(&half, bytes.data() + 2 * i, 2);
      out[i] = value_of(half);
    }
  };
  format == NumberFormat::kBF16 ? widen(float_from_bf16) : widen(float_from_half);
}

void copy_bytes(std::span<const std::byte> from, std::byte* to) {
  constexpr size_t kChunk = size_t{1} << 20;
#pragma omp parallel for if (from.size() > kChunk)
  for (size_t at = 0; at < from.size(); at += kChunk)
    std::memcpy(to + at, from.data() + at, std::min(kChunk, from.size() - at));
}

}  // namespace tessera
