// NF4 and MXFP4 on any device against bitsandbytes and transformers: tests/fixtures/make_nf4_reference.py,
// make_mxfp4_reference.py
#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/base/four_bits.h"
#include "tests/support.h"

namespace tessera::testing {

inline constexpr FourBits kFourBits[] = {FourBits::kNf4, FourBits::kMxfp4};

inline std::vector<float> hex_floats(const nlohmann::json& numbers) {
  std::vector<float> all;
  for (const std::string text : numbers) all.push_back(std::strtof(text.c_str(), nullptr));
  return all;
}

// A matrix on a device, in 4 bits and widened again
struct InFourBits {
  std::vector<uint8_t> bytes;
  std::vector<uint32_t> scales;  // words
  std::vector<float> widened;
};
inline InFourBits through_four_bits(const Stream& stream, FourBits format, const Shape& shape,
                                    std::span<const float> values, DType dtype) {
  Arena arena = stream.device() == Device::kCuda ? Arena::cuda() : Arena::host();
  const auto alloc = [&](DType type, const Shape& of) {
    return arena.alloc(MemoryTag::kData, "of a test", type, of);
  };
  const int64_t count = shape.numel(), words = shape[0] * scale_words(format, shape[1]);
  const Tensor x = alloc(DType::kF32, shape), y = alloc(dtype, shape);
  const FourBitMatrix stored{format, alloc(DType::kU16, {count / 4}), alloc(DType::kF32, {words})};
  HostTensors make;
  const Tensor host = make.poisoned(shape), found = make.poisoned(shape);
  std::ranges::copy(values, floats(host).begin());
  InFourBits result{.bytes = std::vector<uint8_t>(static_cast<size_t>(count / 2)),
                    .scales = std::vector<uint32_t>(static_cast<size_t>(words)),
                    .widened = {}};
  stream.run(Copy{host, x});
  stream.run(RoundToFourBits{.x = x, .y = stored});
  stream.run(WidenFourBits{.x = stored, .y = y});
  stream.run(Copy{stored.scales,
                  {.data = result.scales.data(), .dtype = DType::kF32, .shape = stored.scales.shape}});
  stream.run(Copy{y, found});
  stream.run(
      Copy{stored.data, {.data = result.bytes.data(), .dtype = DType::kU16, .shape = stored.data.shape}});
  stream.synchronize();
  result.widened.assign(floats(found).begin(), floats(found).end());
  return result;
}

// Rounded values, scales, and what they are widened to in this dtype are the reference's to the bit.
inline void expect_four_bits_of_reference(const Stream& stream, FourBits format, DType dtype) {
  const bool nf4 = format == FourBits::kNf4;
  const auto reference =
      nlohmann::json::parse(std::ifstream(std::filesystem::path(TESSERA_SOURCE_DIR) / "tests/fixtures" /
                                          (nf4 ? "nf4_reference.json" : "mxfp4_reference.json")));
  ASSERT_FALSE(reference.empty());
  for (const auto& one : reference) {
    SCOPED_TRACE(one["name"].get<std::string>());
    const std::vector<float> values = hex_floats(one["values"]),
                             widened = hex_floats(one[dtype == DType::kBF16 ? "widened_bf16" : "widened"]);
    const int64_t columns = one["columns"], rows = std::ssize(values) / columns;
    const InFourBits found = through_four_bits(stream, format, {rows, columns}, values, dtype);
    EXPECT_EQ(found.bytes, one["bytes"].get<std::vector<uint8_t>>());
    for (size_t i = 0; i < widened.size(); ++i) EXPECT_EQ(found.widened[i], widened[i]) << i;
    with_four_bits(format, [&]<class Format>() {
      using Scale = typename Format::Scale;
      const ScalePlaces<Format> places(columns);
      std::vector<Scale> scales;
      if constexpr (std::is_same_v<Scale, float>)
        scales = hex_floats(one["scales"]);
      else
        scales = one["scales"].get<std::vector<Scale>>();
      ASSERT_EQ(std::ssize(scales), rows * places.blocks);
      const auto* own = reinterpret_cast<const Scale*>(found.scales.data());
      for (int64_t i = 0; i < std::ssize(scales); ++i)
        EXPECT_EQ(own[places.of(i)], scales[static_cast<size_t>(i)]) << i;
    });
  }
}

// By the definition: of NF4 the largest magnitude, of MXFP4 the first power of two of which 6 is as large
template <class Format>
double scale_by_definition(float largest) {
  if constexpr (Format::kFormat == FourBits::kNf4) return largest;
  double scale = 0x1p-127;
  while (largest > 6 * scale) scale *= 2;
  return scale;
}

// Every number becomes one of the nearest, over tensors of which each block has another scale.
inline void expect_four_bits_by_definition(const Stream& stream, FourBits format, int64_t rows,
                                           int64_t columns) {
  with_four_bits(format, [&]<class Format>() {
    constexpr int kBlock = Format::kBlock;
    HostTensors make;
    const Tensor host = make.normal({rows, columns}, 1);
    const std::span<float> values = floats(host);
    for (size_t i = 0; i < values.size(); ++i)
      values[i] *= std::exp2(static_cast<float>(i / kBlock % 40) - 20);
    const InFourBits found = through_four_bits(stream, format, {rows, columns}, values, DType::kF32);
    for (size_t first = 0; first < values.size(); first += kBlock) {
      float largest = 0;
      for (const float value : values.subspan(first, kBlock)) largest = std::max(largest, std::abs(value));
      const double scale = scale_by_definition<Format>(largest);
      for (size_t i = first; i < first + kBlock; ++i) {
        double nearest = 1e30;
        for (uint32_t code = 0; code < 16; ++code)
          nearest = std::min(nearest, std::abs(static_cast<double>(Format::value(code)) * scale - values[i]));
        ASSERT_NEAR(std::abs(static_cast<double>(found.widened[i]) - values[i]), nearest, 1e-6 * largest)
            << first << " " << i;
      }
    }
  });
}

}  // namespace tessera::testing
