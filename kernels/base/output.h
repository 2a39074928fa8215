// Output files that the user names: --json, --svg and others. An empty path means no file.
#pragma once

#include <string>
#include <string_view>

namespace tessera {

// Call it before work that takes minutes. It creates no file. Error: the path cannot be written.
void check_writable(const std::string& path);

// A regular file is written completely or not at all. A pipe, /dev/stdout or a symbolic link is written in
// place. Error: the path cannot be written, or the disk is full.
void write_output(const std::string& path, std::string_view text);

}  // namespace tessera
