// Scales of NF4 in 8 bits on any device against bitsandbytes: tests/fixtures/make_small_scales_reference.py
#pragma once

#include "kernels/base/bf16.h"
#include "kernels/base/small_scales.h"
#include "tests/four_bits_reference.h"

namespace tessera::testing {

inline nlohmann::json small_scales_reference() {
  return nlohmann::json::parse(std::ifstream(std::filesystem::path(TESSERA_SOURCE_DIR) /
                                             "tests/fixtures/small_scales_reference.json"));
}

// What RoundScales writes of `x`
inline std::vector<uint32_t> small_scales_of(const Stream& stream, const std::vector<float>& x,
                                             const LayerParts& scales) {
  Arena arena = stream.device() == Device::kCuda ? Arena::cuda() : Arena::host();
  const int64_t words = SmallScalePlaces(scales).words();
  const Tensor own = arena.alloc(MemoryTag::kData, "scales", DType::kF32, {std::ssize(x)}),
               y = arena.alloc(MemoryTag::kData, "small scales", DType::kF32, {words});
  std::vector<float> values = x;
  std::vector<uint32_t> found(static_cast<size_t>(words), 0x7fc00000u);
  const Tensor host{.data = found.data(), .dtype = DType::kF32, .shape = y.shape};
  stream.run(Copy{host, y});
  stream.run(Copy{{.data = values.data(), .dtype = DType::kF32, .shape = own.shape}, own});
  stream.run(RoundScales{.x = own, .scales = scales, .y = y});
  stream.run(Copy{y, host});
  stream.synchronize();
  return found;
}

// Codes, largest ones and means are the reference's to the bit, and so is what they stand for.
inline void expect_small_scales_of_reference(const Stream& stream) {
  const nlohmann::json reference = small_scales_reference();
  const std::vector<float> values = hex_floats(reference["values_of_codes"]);
  ASSERT_EQ(values.size(), 256u);
  for (const auto& [name, one] : reference["scales"].items()) {
    SCOPED_TRACE(name);
    const std::vector<float> x = hex_floats(one["scales"]), widened = hex_floats(one["widened"]),
                             largest = hex_floats(one["largest"]);
    const LayerParts parts{std::ssize(x)};
    const std::vector<uint32_t> found = small_scales_of(stream, x, parts);
    const SmallScalePlaces places(parts);
    const auto* words = reinterpret_cast<const float*>(found.data());
    EXPECT_EQ(words[places.means_at()], std::strtof(one["mean"].get<std::string>().c_str(), nullptr));
    for (size_t g = 0; g < largest.size(); ++g)
      EXPECT_EQ(words[static_cast<size_t>(places.largest_at()) + g], largest[g]) << g;
    const auto* codes = reinterpret_cast<const uint8_t*>(found.data());
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(codes[i], one["codes"][i].get<int>()) << i;
      EXPECT_EQ(places.scale(words, values.data(), static_cast<int64_t>(i)), widened[i]) << i;
    }
  }
}

// A matrix of three, rounded and widened, has the bytes and values of bitsandbytes' three.
inline void expect_matrix_of_reference(const Stream& stream, DType dtype) {
  const nlohmann::json one = small_scales_reference()["matrix"];
  const std::vector<float> values = hex_floats(one["values"]);
  std::vector<float> widened = hex_floats(one["widened"]);
  const int64_t columns = one["columns"], rows = std::ssize(values) / columns,
                blocks = std::ssize(values) / kNf4Block;
  const LayerParts parts{one["rows"][0], one["rows"][1], one["rows"][2]};
  Arena arena = stream.device() == Device::kCuda ? Arena::cuda() : Arena::host();
  const auto alloc = [&](DType type, const Shape& shape) {
    return arena.alloc(MemoryTag::kData, "of a test", type, shape);
  };
  const int64_t words = words_of_scales(FourBits::kNf4, {rows, columns}, parts);
  const Tensor x = alloc(DType::kF32, {rows, columns}), y = alloc(dtype, {rows, columns}),
               data = alloc(DType::kU16, {x.numel() / 4}), scales = alloc(DType::kF32, {blocks}),
               small = alloc(DType::kF32, {words});
  HostTensors make;
  const Tensor host = make.poisoned(x.shape), found = make.poisoned(x.shape);
  std::ranges::copy(values, floats(host).begin());
  stream.run(Copy{host, x});
  stream.run(RoundToFourBits{.x = x, .y = {FourBits::kNf4, data, scales}});
  stream.run(RoundScales{.x = scales, .scales = scales_of_each(parts, columns), .y = small});
  stream.run(WidenFourBits{.x = {FourBits::kNf4, data, small, parts}, .y = y});
  std::vector<uint8_t> bytes(values.size() / 2);
  std::vector<float> of_scales(static_cast<size_t>(words));
  stream.run(Copy{y, found});
  stream.run(Copy{data, {.data = bytes.data(), .dtype = DType::kU16, .shape = data.shape}});
  stream.run(Copy{small, {.data = of_scales.data(), .dtype = DType::kF32, .shape = small.shape}});
  stream.synchronize();
  EXPECT_EQ(bytes, one["bytes"].get<std::vector<uint8_t>>());
  const SmallScalePlaces places(scales_of_each(parts, columns));
  const auto* codes = reinterpret_cast<const uint8_t*>(of_scales.data());
  EXPECT_EQ(std::vector<uint8_t>(codes, codes + blocks), one["codes"].get<std::vector<uint8_t>>());
  const std::vector<float> largest = hex_floats(one["largest"]), means = hex_floats(one["means"]);
  ASSERT_EQ(largest.size(), 3u);
  for (int m = 0; m < 3; ++m) {
    EXPECT_EQ(of_scales[static_cast<size_t>(places.largest_at() + m)], largest[static_cast<size_t>(m)]);
    EXPECT_EQ(of_scales[static_cast<size_t>(places.means_at() + m)], means[static_cast<size_t>(m)]);
  }
  if (dtype == DType::kBF16)
    for (float& value : widened) value = float_from_bf16(bf16_from_float(value));
  for (size_t i = 0; i < widened.size(); ++i) EXPECT_EQ(floats(found)[i], widened[i]) << i;
}

}  // namespace tessera::testing
