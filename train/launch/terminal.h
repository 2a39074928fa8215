// Messages on a terminal where another process draws a status line.
#pragma once

#include <string>

#include "kernels/base/status_line.h"

namespace tessera {

// What to write before a line of text: on a terminal it erases the status line.
inline std::string fresh_line(int fd) { return draws_in_place(fd) ? "\r\x1b[K" : ""; }

}  // namespace tessera
