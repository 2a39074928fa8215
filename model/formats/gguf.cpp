#include "model/formats/gguf.h"

#include <array>
#include <cstring>

#include "kernels/base/check.h"

namespace tessera {
namespace {

constexpr std::string_view kGgufMagic = "GGUF";
constexpr uint32_t kGgufVersion = 3;

// The types of values, by their numbers in the file
enum class ValueType : uint32_t { kUint32 = 4, kInt32 = 5, kFloat32 = 6, kBool = 7, kString = 8, kArray = 9 };

// ggml's numbers of the formats
struct TensorType {
  NumberFormat format;
  uint32_t number;
};
constexpr TensorType kTensorTypes[] = {
    {NumberFormat::kF32, 0},
    {NumberFormat::kF16, 1},
    {NumberFormat::kQ8, 8},
    {NumberFormat::kBF16, 30},
    {NumberFormat::kMxfp4, 39}};

uint32_t number_of(NumberFormat format) {
  for (const TensorType& type : kTensorTypes)
    if (type.format == format) return type.number;
  fail("GGUF has no tensors of {}", name_of(format));
}

int64_t aligned(int64_t bytes) { return (bytes + kGgufAlignment - 1) / kGgufAlignment * kGgufAlignment; }

// The bytes before the tensors' data
class Header {
 public:
  template <class T>
  requires std::is_arithmetic_v<T>
  void add(T value) {
    const auto* bytes = reinterpret_cast<const char*>(&value);
    text_.append(bytes, sizeof(value));
  }
  void add(std::string_view text) {
    add(static_cast<uint64_t>(text.size()));
    text_ += text;
  }
  void add(ValueType type) { add(static_cast<uint32_t>(type)); }
  void add_raw(std::string_view text) { text_ += text; }

  void add(const GgufValue& value) {
    std::visit([&](const auto& held) { add_held(held); }, value);
  }
  std::string take() && {
    text_.resize(static_cast<size_t>(aligned(std::ssize(text_))), '\0');
    return std::move(text_);
  }

 private:
  void add_held(uint32_t value) { add(ValueType::kUint32), add(value); }
  void add_held(int32_t value) { add(ValueType::kInt32), add(value); }
  void add_held(float value) { add(ValueType::kFloat32), add(value); }
  void add_held(bool value) { add(ValueType::kBool), add(static_cast<uint8_t>(value)); }
  void add_held(const std::string& value) { add(ValueType::kString), add(std::string_view(value)); }
  void add_held(const std::vector<int32_t>& values) { add_list(ValueType::kInt32, values); }
  void add_held(const std::vector<float>& values) { add_list(ValueType::kFloat32, values); }
  void add_held(const std::vector<std::string>& values) {
    add(ValueType::kArray), add(ValueType::kString), add(static_cast<uint64_t>(values.size()));
    for (const std::string& value : values) add(std::string_view(value));
  }

  template <class T>
  void add_list(ValueType type, const std::vector<T>& values) {
    add(ValueType::kArray), add(type), add(static_cast<uint64_t>(values.size()));
    for (const T value : values) add(value);
  }

  std::string text_;
};

std::string header_of(const std::vector<GgufField>& fields, const std::vector<FileTensor>& tensors) {
  Header header;
  header.add_raw(kGgufMagic);
  header.add(kGgufVersion);
  header.add(static_cast<uint64_t>(tensors.size()));
  header.add(static_cast<uint64_t>(fields.size()));
  for (const GgufField& field : fields) {
    header.add(std::string_view(field.key));
    header.add(field.value);
  }
  int64_t offset = 0;  // from the start of the data
  for (const FileTensor& tensor : tensors) {
    header.add(std::string_view(tensor.name));
    header.add(static_cast<uint32_t>(tensor.shape.rank()));
    for (int i = tensor.shape.rank() - 1; i >= 0; --i) header.add(static_cast<uint64_t>(tensor.shape[i]));
    header.add(number_of(tensor.format));
    header.add(static_cast<uint64_t>(offset));
    offset = aligned(offset + tensor.bytes());
  }
  return std::move(header).take();
}

// Reads values one after another.
class Cursor {
 public:
  Cursor(std::span<const std::byte> bytes, std::string name) : bytes_(bytes), name_(std::move(name)) {}

  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string text() {
    const std::span<const std::byte> bytes = take(number<uint64_t>());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  std::span<const std::byte> take(uint64_t count) {
    check(count <= bytes_.size() - at_,
          "{} is truncated, or not a GGUF file: byte {} must be followed by {} more", name_, at_, count);
    at_ += count;
    return bytes_.subspan(at_ - count, count);
  }
  GgufValue value() {
    const auto type = number<ValueType>();
    switch (type) {
      case ValueType::kUint32:
        return number<uint32_t>();
      case ValueType::kInt32:
        return number<int32_t>();
      case ValueType::kFloat32:
        return number<float>();
      case ValueType::kBool:
        return number<uint8_t>() != 0;
      case ValueType::kString:
        return text();
      case ValueType::kArray:
        return array();
    }
    fail("{}: a field has the type {}, which is not read", name_, static_cast<uint32_t>(type));
  }
  size_t at() const { return at_; }

 private:
  GgufValue array() {
    const auto type = number<ValueType>();
    const auto count = number<uint64_t>();
    std::vector<int32_t> numbers;
    std::vector<float> floats;
    std::vector<std::string> texts;
    for (uint64_t i = 0; i < count; ++i) {
      if (type == ValueType::kInt32)
        numbers.push_back(number<int32_t>());
      else if (type == ValueType::kFloat32)
        floats.push_back(number<float>());
      else if (type == ValueType::kString)
        texts.push_back(text());
      else
        fail("{}: a list has the type {}, which is not read", name_, static_cast<uint32_t>(type));
    }
    if (type == ValueType::kInt32) return numbers;
    if (type == ValueType::kFloat32) return floats;
    return texts;
  }

  std::span<const std::byte> bytes_;
  std::string name_;
  size_t at_ = 0;
};

FileTensor read_tensor(Cursor& header, const std::string& name) {
  FileTensor tensor{.name = header.text(), .shape = {}};
  const auto rank = header.number<uint32_t>();
  check(rank >= 1 && rank <= 3, "{}: tensor {} has {} dimensions, expected 1 to 3", name, tensor.name, rank);
  std::array<int64_t, 3> dims{};
  for (uint32_t i = 0; i < rank; ++i) dims[i] = header.number<int64_t>();
  tensor.shape = rank == 1   ? Shape{dims[0]}
                 : rank == 2 ? Shape{dims[1], dims[0]}
                             : Shape{dims[2], dims[1], dims[0]};
  const auto number = header.number<uint32_t>();
  for (const TensorType& type : kTensorTypes)
    if (type.number == number) {
      tensor.format = type.format;
      return tensor;
    }
  fail("{}: tensor {} has the type {}, which is not read", name, tensor.name, number);
}

}  // namespace

GgufWriter::GgufWriter(const std::filesystem::path& path, const std::vector<GgufField>& fields,
                       std::vector<FileTensor> tensors)
    : file_(path), tensors_(std::move(tensors)) {
  const std::string header = header_of(fields, tensors_);
  file_.write(std::as_bytes(std::span(header)));
}

void GgufWriter::write(std::span<const float> values) {
  check(next_ < tensors_.size() && std::ssize(values) == tensors_[next_].shape.numel(),
        "GGUF: {} values do not fit tensor {} of {}", values.size(), next_, tensors_.size());
  const FileTensor& tensor = tensors_[next_++];
  encode(tensor.format, values, tensor.name, [&](std::span<const std::byte> bytes) { file_.write(bytes); });
  pad(aligned(tensor.bytes()) - tensor.bytes());
}

void GgufWriter::pad(int64_t bytes) {
  static constexpr std::array<std::byte, kGgufAlignment> kZeros{};
  file_.write(std::span(kZeros).first(static_cast<size_t>(bytes)));
}

const std::filesystem::path& GgufWriter::finish() {
  check(next_ == tensors_.size(), "GGUF: {} of {} tensors were written", next_, tensors_.size());
  return file_.finish();
}

FileChecksum GgufWriter::commit() {
  finish();
  return file_.commit();
}

bool begins_as_gguf(std::span<const std::byte> bytes) {
  return bytes.size() >= kGgufMagic.size() &&
         std::memcmp(bytes.data(), kGgufMagic.data(), kGgufMagic.size()) == 0;
}

GgufReader::GgufReader(const std::filesystem::path& path) : file_(path) {
  const std::string name = path.string();
  check(begins_as_gguf(file_.bytes()), "{} is not a GGUF file", name);
  Cursor header(file_.bytes(), name);
  header.take(kGgufMagic.size());
  const auto version = header.number<uint32_t>();
  check(version == kGgufVersion, "{} is of version {} of GGUF, expected {}", name, version, kGgufVersion);
  const auto tensors = header.number<uint64_t>(), fields = header.number<uint64_t>();
  for (uint64_t i = 0; i < fields; ++i) {
    std::string key = header.text();
    fields_[std::move(key)] = header.value();
  }
  std::vector<std::pair<FileTensor, uint64_t>> found;
  for (uint64_t i = 0; i < tensors; ++i) {
    FileTensor tensor = read_tensor(header, name);
    found.emplace_back(std::move(tensor), header.number<uint64_t>());
  }
  const auto start = static_cast<uint64_t>(aligned(static_cast<int64_t>(header.at())));
  for (auto& [tensor, offset] : found) {
    const auto bytes = static_cast<uint64_t>(tensor.bytes());
    check(start + offset + bytes <= file_.bytes().size(), "{} is truncated: tensor {} ends at byte {} of {}",
          name, tensor.name, start + offset + bytes, file_.bytes().size());
    const std::string key = tensor.name;
    tensors_[key] = {std::move(tensor), file_.bytes().subspan(start + offset, bytes)};
  }
}

std::span<const std::byte> GgufReader::bytes(const std::string& tensor) const {
  const auto found = tensors_.find(tensor);
  check(found != tensors_.end(), "{} has no tensor {}", file_.path().string(), tensor);
  return found->second.bytes;
}

}  // namespace tessera
