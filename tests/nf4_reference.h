// NF4 on any device against bitsandbytes: tests/fixtures/make_nf4_reference.py
#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/base/nf4.h"
#include "tests/support.h"

namespace tessera::testing {

inline std::vector<float> hex_floats(const nlohmann::json& numbers) {
  std::vector<float> all;
  for (const std::string text : numbers) all.push_back(std::strtof(text.c_str(), nullptr));
  return all;
}

// Rounded values, scales, and what they are widened to in this dtype are those of bitsandbytes to the bit.
inline void expect_nf4_of_bitsandbytes(const Stream& stream, DType dtype) {
  const auto reference = nlohmann::json::parse(
      std::ifstream(std::filesystem::path(TESSERA_SOURCE_DIR) / "tests/fixtures/nf4_reference.json"));
  ASSERT_FALSE(reference.empty());
  for (const auto& one : reference) {
    SCOPED_TRACE(one["name"].get<std::string>());
    const std::vector<float> values = hex_floats(one["values"]), scales = hex_floats(one["scales"]),
                             widened = hex_floats(one[dtype == DType::kBF16 ? "widened_bf16" : "widened"]);
    const std::vector<uint8_t> bytes = one["bytes"];
    const int64_t count = std::ssize(values), columns = one["columns"];
    const Shape shape{count / columns, columns};
    Arena arena = stream.device() == Device::kCuda ? Arena::cuda() : Arena::host();
    const auto alloc = [&](DType type, const Shape& of) {
      return arena.alloc(MemoryTag::kData, "of a test", type, of);
    };
    const Tensor x = alloc(DType::kF32, shape), y = alloc(dtype, shape);
    const Nf4Matrix nf4{alloc(DType::kU16, {count / 4}), alloc(DType::kF32, {count / kNf4Block})};
    HostTensors make;
    const Tensor host = make.poisoned(shape), found = make.poisoned(shape),
                 found_scales = make.poisoned(nf4.scales.shape);
    std::copy(values.begin(), values.end(), floats(host).begin());
    stream.run(Copy{host, x});
    stream.run(RoundNf4{.x = x, .y = nf4});
    stream.run(WidenNf4{.x = nf4, .y = y});
    stream.run(Copy{nf4.scales, found_scales});
    stream.run(Copy{y, found});
    std::vector<uint16_t> units(static_cast<size_t>(count / 4));
    stream.run(Copy{nf4.data, {.data = units.data(), .dtype = DType::kU16, .shape = nf4.data.shape}});
    stream.synchronize();
    EXPECT_EQ(std::memcmp(units.data(), bytes.data(), bytes.size()), 0);
    for (size_t i = 0; i < scales.size(); ++i) EXPECT_EQ(floats(found_scales)[i], scales[i]) << i;
    for (size_t i = 0; i < widened.size(); ++i) EXPECT_EQ(floats(found)[i], widened[i]) << i;
  }
}

// Numbers on the bounds between two codes, not numbers, and tensors of which each block has another scale
inline void expect_nf4_by_definition(const Stream& stream, int64_t rows, int64_t columns) {
  Arena arena = stream.device() == Device::kCuda ? Arena::cuda() : Arena::host();
  const auto alloc = [&](DType type, const Shape& of) {
    return arena.alloc(MemoryTag::kData, "of a test", type, of);
  };
  const Shape shape{rows, columns};
  HostTensors make;
  const Tensor host = make.normal(shape, 1), found = make.poisoned(shape);
  for (int64_t block = 0; block < shape.numel() / kNf4Block; ++block)
    for (float& value : floats(host).subspan(static_cast<size_t>(block) * kNf4Block, kNf4Block))
      value *= std::exp2(static_cast<float>(block % 40 - 20));
  const Tensor x = alloc(DType::kF32, shape), y = alloc(DType::kF32, shape);
  const Nf4Matrix nf4{alloc(DType::kU16, {shape.numel() / 4}),
                      alloc(DType::kF32, {shape.numel() / kNf4Block})};
  stream.run(Copy{host, x});
  stream.run(RoundNf4{.x = x, .y = nf4});
  stream.run(WidenNf4{.x = nf4, .y = y});
  stream.run(Copy{y, found});
  stream.synchronize();
  for (int64_t first = 0; first < shape.numel(); first += kNf4Block) {
    const std::span<const float> block = floats(host).subspan(static_cast<size_t>(first), kNf4Block),
                                 got = floats(found).subspan(static_cast<size_t>(first), kNf4Block);
    float largest = 0;
    for (const float value : block) largest = std::max(largest, std::abs(value));
    for (size_t i = 0; i < block.size(); ++i) {
      double nearest = 1e30;
      for (uint32_t code = 0; code < 16; ++code)
        nearest = std::min(nearest, std::abs(static_cast<double>(nf4_value(code)) * largest - block[i]));
      ASSERT_NEAR(std::abs(static_cast<double>(got[i]) - block[i]), nearest, 1e-6 * largest)
          << first << " " << i;
    }
  }
}

}  // namespace tessera::testing
