#include "model/formats/safetensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/json_text.h"

namespace tessera {
namespace {

using nlohmann::json;

constexpr size_t kLongestHeader = 100'000'000;  // bytes, as the reference implementation has it
constexpr size_t kMostDims = 16;                // of a tensor

const char* dtype_in_file(NumberFormat format) {
  switch (format) {
    case NumberFormat::kF32:
      return "F32";
    case NumberFormat::kF16:
      return "F16";
    case NumberFormat::kBF16:
      return "BF16";
    case NumberFormat::kQ8:
    case NumberFormat::kMxfp4:
      break;
  }
  fail("a safetensors file does not hold {}", name_of(format));
}

// The format of a dtype that check_readable() accepts
NumberFormat format_of(const std::string& dtype) {
  return dtype == "F32" ? NumberFormat::kF32 : dtype == "BF16" ? NumberFormat::kBF16 : NumberFormat::kF16;
}

std::string list(const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

// A tensor's name from an untrusted header
std::string printable_name(const std::string& name) {
  const std::string quoted = brief(json(name));
  return quoted == '"' + name + '"' ? name : quoted;
}

std::vector<int64_t> shape_of(const json& value, const std::string& tensor) {
  const auto shape = value.find("shape");
  check(shape != value.end() && shape->is_array(), "{} must have a list \"shape\", found {}", tensor,
        brief(value));
  check(shape->size() <= kMostDims, "{} has a shape of {} numbers; expected at most {}", tensor,
        shape->size(), kMostDims);
  std::vector<int64_t> dims;
  for (const json& dim : *shape)
    dims.push_back(whole_number(json::object({{"shape", dim}}), "shape", tensor));
  return dims;
}

std::pair<uint64_t, uint64_t> offsets_of(const json& value, const std::string& tensor) {
  const auto offsets = value.find("data_offsets");
  check(offsets != value.end() && offsets->is_array() && offsets->size() == 2,
        "{} must have \"data_offsets\", a list of two numbers, found {}", tensor, brief(value));
  const auto offset = [&](size_t i) {
    const json number = json::object({{"data_offsets", (*offsets)[i]}});
    return static_cast<uint64_t>(whole_number(number, "data_offsets", tensor));
  };
  const uint64_t begin = offset(0), end = offset(1);
  check(begin <= end, "{} begins at byte {} and ends before that, at {}", tensor, begin, end);
  return {begin, end};
}

uint64_t bytes_of(const std::vector<int64_t>& shape, const std::string& dtype, const std::string& tensor) {
  static const std::map<std::string_view, uint64_t> kWidths = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1},
      {"U16", 2},  {"I16", 2}, {"F16", 2}, {"BF16", 2},    {"U32", 4},     {"I32", 4},
      {"F32", 4},  {"U64", 8}, {"I64", 8}, {"F64", 8},     {"C64", 8}};
  const auto width = kWidths.find(dtype);
  check(width != kWidths.end(), "{} has the unknown dtype {}", tensor, brief(json(dtype)));
  uint64_t bytes = width->second;
  for (const int64_t dim : shape)
    check(!__builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes),
          "{} of {} {} takes more than 2^64 bytes", tensor, dtype, list(shape));
  return bytes;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<FileTensor> entries,
                                     Values values, const Metadata& metadata)
    : file_(path), entries_(std::move(entries)), values_(values) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};  // transformers refuses a file without it
  for (const auto& [key, text] : metadata) header["__metadata__"][key] = text;
  int64_t offset = 0;
  for (const FileTensor& entry : entries_) {
    json shape = json::array();
    for (int i = 0; i < entry.shape.rank(); ++i) shape.push_back(entry.shape[i]);
    const int64_t end = offset + bytes_of(entry.format, entry.shape.numel());
    header[entry.name] = {
        {"dtype", dtype_in_file(entry.format)}, {"shape", shape}, {"data_offsets", {offset, end}}};
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
  const FileTensor& entry = entries_[next_++];
  encode(
      entry.format, values, entry.name, [&](std::span<const std::byte> bytes) { file_.write(bytes); },
      values_);
}

FileChecksum SafetensorsWriter::commit() {
  check(next_ == entries_.size(), "safetensors: {} of {} tensors were written", next_, entries_.size());
  return file_.commit();
}

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path) : file_(path) {
  const std::span<const std::byte> bytes = file_.bytes();
  uint64_t length = 0;
  check(bytes.size() >= sizeof(length), "{} is not a safetensors file: it has only {} bytes", path.string(),
        bytes.size());
  std::memcpy(&length, bytes.data(), sizeof(length));
  check(length <= bytes.size() - sizeof(length),
        "{} is not a safetensors file, or it is truncated: its header takes {} bytes, the file has {}",
        path.string(), length, bytes.size());
  read_header(bytes.subspan(sizeof(length), length), bytes.subspan(sizeof(length) + length));
}

void SafetensorsReader::read_header(std::span<const std::byte> bytes, std::span<const std::byte> data) {
  const std::string name = path().string(), what = name + " is not a safetensors file: its header";
  const std::string_view text{reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  check(text.starts_with('{'), "{} does not begin with \"{{\"", what);
  struct Range {
    uint64_t begin, end;
    std::string tensor;
    auto operator<=>(const Range&) const = default;
  };
  std::vector<Range> ranges;
  const json header = parse_json(text, what, {.bytes = kLongestHeader});
  for (const auto& [key, value] : header.items()) {
    if (key == "__metadata__") {
      check(value.is_object(), "{}: __metadata__ must be an object, found {}", what, brief(value));
      for (const auto& [of, text] : value.items())
        if (text.is_string()) metadata_[of] = text.get<std::string>();
      continue;
    }
    const std::string tensor = name + ": tensor " + printable_name(key);
    Entry entry{.dtype = text_value(value, "dtype", tensor), .shape = shape_of(value, tensor), .bytes = {}};
    const auto [begin, end] = offsets_of(value, tensor);
    check(end <= data.size(), "{} is truncated: tensor {} ends at byte {} of the data, which has {}", name,
          printable_name(key), end, data.size());
    const uint64_t expected = bytes_of(entry.shape, entry.dtype, tensor);
    check(end - begin == expected, "{} of {} {} takes {} bytes, its data_offsets [{}, {}] hold {}", tensor,
          entry.dtype, list(entry.shape), expected, begin, end, end - begin);
    entry.bytes = data.subspan(begin, end - begin);
    entries_[key] = std::move(entry);
    ranges.push_back({begin, end, key});
  }
  std::sort(ranges.begin(), ranges.end());
  uint64_t at = 0;
  for (const Range& range : ranges) {
    const std::string tensor = printable_name(range.tensor);
    check(range.begin >= at, "{}: tensor {} begins at byte {} of the data, where another ends only at {}",
          name, tensor, range.begin, at);
    check(range.begin == at, "{}: bytes {} to {} of the data, before tensor {}, belong to no tensor", name,
          at, range.begin, tensor);
    at = range.end;
  }
  check(at == data.size(), "{}: the last {} bytes belong to no tensor", name, data.size() - at);
}

void SafetensorsReader::check_readable(const std::string& name, const Shape& shape) const {
  const auto found = entries_.find(name);
  check(found != entries_.end(), "{} has no tensor {}", path().string(), name);
  const Entry& entry = found->second;
  bool same = static_cast<int>(entry.shape.size()) == shape.rank();
  for (int i = 0; same && i < shape.rank(); ++i) same = entry.shape[static_cast<size_t>(i)] == shape[i];
  check(same, "{}: tensor {} has shape {}, expected {}", path().string(), name, list(entry.shape),
        shape.to_string());
  check(entry.dtype == "F32" || entry.dtype == "BF16" || entry.dtype == "F16",
        "{}: tensor {} has dtype {}; F32, BF16 and F16 can be read", path().string(), name, entry.dtype);
}

void SafetensorsReader::check_finite(const std::string& name) const {
  const Entry& entry = entries_.at(name);
  const std::optional<NotFinite> bad = find_not_finite(format_of(entry.dtype), entry.bytes);
  if (!bad) return;
  std::vector<size_t> index(entry.shape.size());
  size_t left = bad->index;
  for (size_t i = index.size(); i-- > 0; left /= static_cast<size_t>(entry.shape[i]))
    index[i] = left % static_cast<size_t>(entry.shape[i]);
  fail(
      "{}: tensor {} is not finite: its value [{}] is {}. The file is damaged, or was written so: copy the "
      "folder again from where it comes from, or name another one",
      path().string(), printable_name(name), fmt::join(index, ", "), bad->value);
}

void SafetensorsReader::read(const std::string& name, const Shape& shape, std::span<float> out,
                             Values values) const {
  check_readable(name, shape);
  if (values == Values::kFinite) check_finite(name);
  const Entry& entry = entries_.at(name);
  const NumberFormat format = format_of(entry.dtype);
  check(std::ssize(entry.bytes) == bytes_of(format, std::ssize(out)),
        "{}: tensor {} has {} bytes, expected {}", path().string(), name, entry.bytes.size(),
        bytes_of(format, std::ssize(out)));
  decode(format, entry.bytes, out);
}

}  // namespace tessera
