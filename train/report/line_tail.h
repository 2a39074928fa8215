// Reads the lines of a growing file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string_view>

namespace tessera {

// Each read() visits the lines that were added since the last read(). A last line without a line break may be
// incomplete, so it waits for the next read(). Lines over 16 MiB are visited as empty lines.
class LineTail {
 public:
  explicit LineTail(std::filesystem::path path) : path_(std::move(path)) {}

  // Whether the file is now shorter than the part that was read. Then it was replaced, and read() starts from
  // its beginning.
  bool was_replaced();
  // `offset` is that of the line's first byte. Error: the file cannot be read.
  void read(const std::function<void(std::string_view line, int64_t offset)>& visit);

 private:
  std::filesystem::path path_;
  int64_t offset_ = 0;  // of the first byte that was not yet visited
};

}  // namespace tessera
