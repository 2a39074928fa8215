#include "model/formats/bitsandbytes.h"

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/json_text.h"
#include "kernels/base/nf4.h"

namespace tessera {
namespace {

constexpr const char* kState = ".quant_state.bitsandbytes__nf4";

std::vector<float> floats_of(std::span<const std::byte> bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace

bool is_bitsandbytes_nf4(const nlohmann::json& config) {
  const auto is = [&](const char* key, const nlohmann::json& value) {
    return config.contains(key) && config[key] == value;
  };
  return config.is_object() && is("quant_method", "bitsandbytes") && is("load_in_4bit", true) &&
         is("bnb_4bit_quant_type", "nf4");
}

bool Nf4Tensor::is_one(const TensorFiles& files, const std::string& name) {
  return files.contains(name + kState);
}

Nf4Tensor::Nf4Tensor(const TensorFiles& files, const std::string& name, const Shape& shape)
    : files_(files), name_(name), names_{name} {
  const std::string of_state = name + kState;
  const std::span<const std::byte> text = files.file_of(of_state).entries().at(of_state).bytes;
  names_.push_back(of_state);
  const nlohmann::json state =
      parse_json({reinterpret_cast<const char*>(text.data()), text.size()}, "tensor " + of_state);
  nlohmann::json expected = nlohmann::json::array();
  for (int i = 0; i < shape.rank(); ++i) expected.push_back(shape[i]);
  check(state.is_object() && state.contains("shape") && state["shape"] == expected,
        "tensor {}: \"shape\" must be {}, found {}", of_state, shape.to_string(),
        brief(state.is_object() && state.contains("shape") ? state["shape"] : state));
  check(text_value(state, "quant_type", of_state) == "nf4",
        "tensor {}: \"quant_type\" must be \"nf4\", found {}", of_state, brief(state["quant_type"]));
  block_ = whole_number(state, "blocksize", of_state, 1, shape.numel() + 4096);
  const SafetensorsReader::Entry& codes = files.file_of(name).entries().at(name);
  check(std::ssize(codes.bytes) == (shape.numel() + 1) / 2,
        "tensor {} has {} bytes, expected {}: two numbers of {} in a byte", name, codes.bytes.size(),
        (shape.numel() + 1) / 2, shape.to_string());
  codes_ = codes.bytes;
  const std::vector<float> values = floats_of(bytes_of(".quant_map", "F32", 16));
  for (uint32_t code = 0; code < 16; ++code)
    check(values[code] == nf4_value(code),
          "tensor {}.quant_map: value {} must be {}, which NF4 has, found {}", name, code, nf4_value(code),
          values[code]);
  scales_.resize(static_cast<size_t>((shape.numel() + block_ - 1) / block_));
  read_scales(state);
  for (const float scale : scales_)
    check(std::isfinite(scale),
          "tensor {}.absmax: a scale is not finite, but {}. The file is damaged: copy the "
          "folder again from where it comes from",
          name, scale);
}

std::span<const std::byte> Nf4Tensor::bytes_of(const std::string& suffix, const char* dtype,
                                               int64_t elements) {
  const std::string name = name_ + suffix;
  const SafetensorsReader::Entry& entry = files_.file_of(name).entries().at(name);
  const int64_t unit = std::string_view(dtype) == "U8" ? 1 : 4;
  check(entry.dtype == dtype && std::ssize(entry.bytes) == elements * unit,
        "tensor {} must have {} numbers of dtype {}, found {} bytes of dtype {}", name, elements, dtype,
        entry.bytes.size(), entry.dtype);
  names_.push_back(name);
  return entry.bytes;
}

void Nf4Tensor::read_scales(const nlohmann::json& state) {
  const int64_t count = std::ssize(scales_);
  if (!state.contains("nested_blocksize")) {
    scales_ = floats_of(bytes_of(".absmax", "F32", count));
    return;
  }
  const int64_t nested = whole_number(state, "nested_blocksize", name_ + kState, 1, count + 4096);
  check(state.contains("nested_offset") && state["nested_offset"].is_number(),
        "tensor {}{}: \"nested_offset\" must be a number", name_, kState);
  const auto offset = state["nested_offset"].get<float>();
  const std::span<const std::byte> codes = bytes_of(".absmax", "U8", count);
  const std::vector<float> largest =
                               floats_of(bytes_of(".nested_absmax", "F32", (count + nested - 1) / nested)),
                           map = floats_of(bytes_of(".nested_quant_map", "F32", 256));
  for (int64_t i = 0; i < count; ++i) {
    const float scale =
        map[static_cast<size_t>(codes[static_cast<size_t>(i)])] * largest[static_cast<size_t>(i / nested)];
    scales_[static_cast<size_t>(i)] = scale + offset;
  }
}

void Nf4Tensor::read(std::span<float> out) const {
  for (size_t i = 0; i < out.size(); ++i) {
    const auto byte = static_cast<uint32_t>(codes_[i / 2]);
    out[i] = nf4_value(i % 2 == 0 ? byte >> 4 : byte & 15) * scales_[i / static_cast<size_t>(block_)];
  }
}

}  // namespace tessera
