// Files that the user names for a program to write: --json, --svg and the like. An empty path is no file.
#pragma once

#include <string>
#include <string_view>

namespace tessera {

// Before minutes are spent on what goes there. Leaves nothing behind. Error: it cannot be written.
void check_writable(const std::string& path);

// A regular file appears whole or not at all. What is none, such as a pipe, /dev/stdout or a symbolic link,
// is written in place: it stays what it is. Error: as above, and a full disk.
void write_output(const std::string& path, std::string_view text);

}  // namespace tessera
