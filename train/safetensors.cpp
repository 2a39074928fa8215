#include "train/safetensors.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "data/json_text.h"
#include "kernels/base/bf16.h"
#include "kernels/base/check.h"

namespace tessera {
namespace {

using nlohmann::json;

constexpr size_t kLongestHeader = 100'000'000;  // bytes, as the reference implementation has it

float float_from_half(uint16_t half) {
  const int exponent = (half >> 10) & 31, mantissa = half & 1023;
  const float magnitude = exponent == 0    ? std::ldexp(static_cast<float>(mantissa), -24)
                          : exponent == 31 ? (mantissa ? std::nanf("") : INFINITY)
                                           : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  return half & 0x8000 ? -magnitude : magnitude;
}

// An exponent of ones is NaN or infinity. The test is on bits and without a branch, so that the loop
// vectorises.
void check_finite(std::span<const float> values, const std::string& name) {
  constexpr uint32_t kExponent = 0x7F800000;
  int bad = 0;
#pragma omp parallel for reduction(| : bad)
  for (size_t i = 0; i < values.size(); ++i)
    bad |= (std::bit_cast<uint32_t>(values[i]) & kExponent) == kExponent;
  if (!bad) return;
  const auto first = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
  fail(
      "{} is not finite: its value {} is {}. The training has diverged: a lower optimizer.learning_rate, a "
      "longer "
      "warm-up or clipping (optimizer.max_grad_norm) usually helps",
      name, first - values.begin(), *first);
}

std::string list(const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<Entry> entries)
    : file_(path), entries_(std::move(entries)) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};  // transformers refuses a file without it
  int64_t offset = 0;
  for (const Entry& entry : entries_) {
    json shape = json::array();
    for (int i = 0; i < entry.shape.rank(); ++i) shape.push_back(entry.shape[i]);
    const int64_t end = offset + entry.shape.numel() * static_cast<int64_t>(sizeof(float));
    header[entry.name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data that follows stays aligned to 8 bytes
  const uint64_t length = text.size();
  file_.write(std::as_bytes(std::span(&length, 1)));
  file_.write(std::as_bytes(std::span(text)));
}

void SafetensorsWriter::write(std::span<const float> values) {
  check(next_ < entries_.size() && static_cast<int64_t>(values.size()) == entries_[next_].shape.numel(),
        "safetensors: {} values do not fit tensor {} of {}", values.size(), next_, entries_.size());
  check_finite(values, entries_[next_].name);
  file_.write(std::as_bytes(values));
  ++next_;
}

FileChecksum SafetensorsWriter::commit() {
  check(next_ == entries_.size(), "safetensors: {} of {} tensors were written", next_, entries_.size());
  return file_.commit();
}

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path) : file_(path) {
  const std::span<const std::byte> bytes = file_.bytes();
  const std::string name = path.string();
  uint64_t length = 0;
  check(bytes.size() >= sizeof(length), "{} is not a safetensors file: it has only {} bytes", name,
        bytes.size());
  std::memcpy(&length, bytes.data(), sizeof(length));
  check(length <= bytes.size() - sizeof(length),
        "{} is not a safetensors file, or it is truncated: its header wants {} bytes, the file has {}", name,
        length, bytes.size());
  const char* text = reinterpret_cast<const char*>(bytes.data()) + sizeof(length);
  const std::span<const std::byte> data = bytes.subspan(sizeof(length) + length);
  try {
    const json header = parse_json({text, length}, name, {.bytes = kLongestHeader});
    for (const auto& [key, value] : header.items()) {
      if (key == "__metadata__") continue;
      const auto begin = value.at("data_offsets").at(0).get<uint64_t>(),
                 end = value.at("data_offsets").at(1).get<uint64_t>();
      check(begin <= end && end <= data.size(),
            "{} is truncated: tensor {} ends at byte {} of the data, which has {}", name, key, end,
            data.size());
      entries_[key] = {value.at("dtype").get<std::string>(), value.at("shape").get<std::vector<int64_t>>(),
                       data.subspan(begin, end - begin)};
    }
  } catch (const json::exception& error) {
    fail("{} is not a safetensors file: {}", name, error.what());
  }
}

void SafetensorsReader::read(const std::string& name, const Shape& shape, std::span<float> out) const {
  const auto found = entries_.find(name);
  check(found != entries_.end(), "{} has no tensor {}", path().string(), name);
  const Entry& entry = found->second;
  bool same = static_cast<int>(entry.shape.size()) == shape.rank();
  for (int i = 0; same && i < shape.rank(); ++i) same = entry.shape[i] == shape[i];
  check(same, "{}: tensor {} has shape {}, wanted {}", path().string(), name, list(entry.shape),
        shape.to_string());
  const size_t width = entry.dtype == "F32" ? 4 : 2;
  check(entry.dtype == "F32" || entry.dtype == "BF16" || entry.dtype == "F16",
        "{}: tensor {} has dtype {}; F32, BF16 and F16 can be read", path().string(), name, entry.dtype);
  check(entry.bytes.size() == out.size() * width && static_cast<int64_t>(out.size()) == shape.numel(),
        "{}: tensor {} has {} bytes, wanted {}", path().string(), name, entry.bytes.size(),
        out.size() * width);
  if (width == 4) {
    std::memcpy(out.data(), entry.bytes.data(), entry.bytes.size());
    return;
  }
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t half;
    std::memcpy(&half, entry.bytes.data() + 2 * i, 2);
    out[i] = entry.dtype == "BF16" ? float_from_bf16(half) : float_from_half(half);
  }
}

}  // namespace tessera
