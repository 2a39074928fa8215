#include "model/formats/bitsandbytes.h"

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/json_text.h"
#include "kernels/base/nf4.h"
#include "kernels/base/small_scales.h"

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

bool is_in_nf4(const std::filesystem::path& folder) {
  const nlohmann::json config = read_json(folder / "config.json");
  return config.is_object() && config.contains("quantization_config") &&
         is_bitsandbytes_nf4(config["quantization_config"]);
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
  find_scales(state, (shape.numel() + block_ - 1) / block_);
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

void Nf4Tensor::find_scales(const nlohmann::json& state, int64_t count) {
  const bool nested = state.contains("nested_blocksize");
  absmax_ = bytes_of(".absmax", nested ? "U8" : "F32", count);
  if (!nested) return;
  nested_block_ = whole_number(state, "nested_blocksize", name_ + kState, 1, count + 4096);
  check(state.contains("nested_offset") && state["nested_offset"].is_number(),
        "tensor {}{}: \"nested_offset\" must be a number", name_, kState);
  offset_ = state["nested_offset"].get<float>();
  largest_ = floats_of(bytes_of(".nested_absmax", "F32", (count + nested_block_ - 1) / nested_block_));
  map_ = floats_of(bytes_of(".nested_quant_map", "F32", 256));
}

std::string Nf4Tensor::difference(const Form& form) const {
  if (block_ != kNf4Block) return fmt::format("has blocks of {} numbers, not of {}", block_, kNf4Block);
  if (form.columns % kNf4Block != 0)
    return fmt::format("has rows of {} numbers, so that blocks of {} go from a row to the next", form.columns,
                       kNf4Block);
  if (!form.nested) return "";
  if (nested_block_ == 0) return "has scales in fp32";
  if (nested_block_ != kScaleGroup)
    return fmt::format("has groups of {} scales, not of {}", nested_block_, kScaleGroup);
  for (int code = 0; code < 256; ++code)
    if (map_[static_cast<size_t>(code)] != small_scale_value(code))
      return fmt::format("has another value for code {} of a scale: {}, not {}", code,
                         map_[static_cast<size_t>(code)], small_scale_value(code));
  return "";
}

std::vector<float> Nf4Tensor::scales() const {
  std::vector<float> all(absmax_.size());
  if (nested_block_ == 0) all = floats_of(absmax_);
  for (size_t i = 0; nested_block_ > 0 && i < all.size(); ++i)
    all[i] = small_scale(map_[static_cast<size_t>(absmax_[i])],
                         largest_[i / static_cast<size_t>(nested_block_)], offset_);
  for (const float scale : all)
    check(std::isfinite(scale),
          "tensor {}.absmax: a scale is not finite, but {}. The file is damaged: copy the folder again from "
          "where it comes from",
          name_, scale);
  return all;
}

void Nf4Tensor::read(std::span<float> out) const {
  const std::vector<float> scales = this->scales();
  for (size_t i = 0; i < out.size(); ++i) {
    const auto byte = static_cast<uint32_t>(codes_[i / 2]);
    out[i] = nf4_value(i % 2 == 0 ? byte >> 4 : byte & 15) * scales[i / static_cast<size_t>(block_)];
  }
}

}  // namespace tessera
