// The lines of a file that grows.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string_view>

namespace tessera {

// Each read() visits the lines that came since the one before. A last line without its end is left for later:
// whoever writes the file may be at it. Lines over 16 MiB are visited as empty ones.
class LineTail {
 public:
  explicit LineTail(std::filesystem::path path) : path_(std::move(path)) {}

  // The file has become shorter than what was read of it, so it is another one: it is read from its start.
  bool started_anew();
  // `offset` is that of the line's first byte. Error: the file cannot be read.
  void read(const std::function<void(std::string_view line, int64_t offset)>& visit);

 private:
  std::filesystem::path path_;
  int64_t offset_ = 0;  // of the first byte that was not visited
};

}  // namespace tessera
