// Messages beside a status line that another process draws on the same terminal.
#pragma once

#include <unistd.h>

#include <string>

namespace tessera {

// What to write before a line of text: on a terminal it takes the place of the status that stands there.
inline std::string fresh_line(int fd) { return isatty(fd) ? "\r\x1b[K" : ""; }

}  // namespace tessera
