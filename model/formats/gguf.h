// GGUF, version 3: the file of llama.cpp. Little-endian:
//
//   "GGUF", version, number of tensors, number of fields
//   the fields: key, type, value
//   the tensors: name, dimensions (the innermost first), type, offset
//   zeros up to a multiple of 32 bytes, then the data of each tensor, which begins at a multiple of 32
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "kernels/base/file.h"
#include "model/formats/file_tensor.h"

namespace tessera {

using GgufValue = std::variant<uint32_t, int32_t, float, bool, std::string, std::vector<int32_t>,
                               std::vector<float>, std::vector<std::string>>;
struct GgufField {
  std::string key;
  GgufValue value;
};

inline constexpr int64_t kGgufAlignment = 32;  // bytes; readers assume it if general.alignment is missing

// Writes tensors in the order of the list given at the start. The file appears when commit() is called.
// Error: as OutputFile and encode()
class GgufWriter {
 public:
  GgufWriter(const std::filesystem::path& path, const std::vector<GgufField>& fields,
             std::vector<FileTensor> tensors);
  // The next tensor of the list, rounded to its format. Error: another size than its shape's
  void write(std::span<const float> values);
  // The complete file under its temporary name. Error: tensors are missing
  const std::filesystem::path& finish();
  FileChecksum commit();

 private:
  void pad(int64_t bytes);

  OutputFile file_;
  std::vector<FileTensor> tensors_;
  size_t next_ = 0;
};

// Reads such a file. Error: it is truncated or of another kind.
class GgufReader {
 public:
  explicit GgufReader(const std::filesystem::path& path);

  struct Entry {
    FileTensor tensor;
    std::span<const std::byte> bytes;
  };
  const std::map<std::string, Entry>& tensors() const { return tensors_; }
  const std::map<std::string, GgufValue>& fields() const { return fields_; }
  std::span<const std::byte> bytes(const std::string& tensor) const;  // Error: no such tensor

 private:
  MappedFile file_;
  std::map<std::string, Entry> tensors_;
  std::map<std::string, GgufValue> fields_;
};

bool begins_as_gguf(std::span<const std::byte> bytes);

}  // namespace tessera
