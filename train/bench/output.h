// What the benchmarks write besides their tables. An empty path is no file.
#pragma once

#include <string>

namespace tessera {

// Before minutes are spent on what goes there. Error: it cannot be written.
void check_writable(const std::string& path);
// A plain stream, since the path may be a pipe. Error: as above, and a full disk.
void write_output(const std::string& path, const std::string& text);

}  // namespace tessera
