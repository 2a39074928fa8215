// The safetensors file format: an 8-byte little-endian length, a JSON header with a dtype, a shape and two
// offsets for every tensor, then the tensors' bytes. https://github.com/huggingface/safetensors, "Format".
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/file.h"
#include "kernels/base/tensor.h"
#include "model/formats/file_tensor.h"

namespace tessera {

// The texts in a file's header
using Metadata = std::map<std::string, std::string>;

// Writes fp32, fp16 or bf16 tensors, in the order of the list given to the constructor. The file appears when
// commit() is called. Error: the disk is full; there is no permission; with kFinite a value is NaN or
// infinite. No file remains then.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& path, std::vector<FileTensor> entries,
                    Values values = Values::kFinite, const Metadata& metadata = {});
  // The next tensor of the list, rounded to its format. Error: another size than its shape's
  void write(std::span<const float> values);
  FileChecksum commit();  // Error: tensors are missing

 private:
  OutputFile file_;
  std::vector<FileTensor> entries_;
  Values values_;
  size_t next_ = 0;
};

// Reads F32, F16 and BF16 tensors as fp32. Error: not a safetensors file. Its tensors must fill the file
// without overlaps or gaps, each with the bytes of its shape and dtype, so no part of a file stays unread.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }

  struct Entry {
    std::string dtype;
    std::vector<int64_t> shape;
    std::span<const std::byte> bytes;
  };
  const std::map<std::string, Entry>& entries() const { return entries_; }
  bool contains(const std::string& name) const { return entries_.contains(name); }
  const Metadata& metadata() const { return metadata_; }

  // Error: no such tensor, another shape, an unsupported dtype.
  void check_readable(const std::string& name, const Shape& shape) const;
  // Error: as check_readable(); with kFinite a value that is not finite, named by its place
  void read(const std::string& name, const Shape& shape, std::span<float> out,
            Values values = Values::kAny) const;
  void check_finite(const std::string& name) const;  // of a tensor that is readable

 private:
  void read_header(std::span<const std::byte> header, std::span<const std::byte> data);

  MappedFile file_;
  std::map<std::string, Entry> entries_;
  Metadata metadata_;
};

}  // namespace tessera
