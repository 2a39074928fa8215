// The bytes of an input, decompressed: a file, a pipe or standard input.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/descriptor.h"

namespace tessera {

inline constexpr const char* kStandardInput = "-";

// The name without .gz or .zst
std::filesystem::path uncompressed_name(const std::filesystem::path& input);

// Decompresses: turns the bytes of a compression format into the bytes of its content.
class Decompressor {
 public:
  virtual ~Decompressor() = default;
  // Moves `in` past the bytes that were used, and returns how many bytes were written to `out`.
  // Error: bytes that are not of the format, with the library's reason.
  virtual size_t decompress(std::span<const char>& in, std::span<char> out) = 0;
  virtual bool is_between_parts() const = 0;  // false: the content is not complete, so the input must go on
};

class InputFile {
 public:
  // Inputs whose names end in .gz or .zst are decompressed, even if they have several parts. "-" is standard
  // input, which is not decompressed. Error: the input cannot be opened, with the system's reason.
  explicit InputFile(const std::filesystem::path& input);

  // Fills `out` with what can be read now, and returns how much that is; 0: the end. Error: the input cannot
  // be read, is a pointer of Git LFS, or its compressed bytes are damaged or cut.
  size_t read(std::span<char> out);

  int64_t bytes_read() const { return bytes_read_; }  // of the file as it is stored

 private:
  size_t read_bytes(std::span<char> out);

  std::string name_;
  Descriptor file_;
  std::unique_ptr<Decompressor> decompressor_;  // null: the bytes are the content
  std::vector<char> buffer_;                    // compressed
  std::span<const char> unused_;                // the part of buffer_ that was not yet decompressed
  int64_t bytes_read_ = 0;
};

}  // namespace tessera
