// Messages beside a status line that another process draws on the same terminal.
#pragma once

#include <string>

#include "kernels/base/status_line.h"

namespace tessera {

// What to write before a line of text: on a terminal it takes the place of the status that stands there.
inline std::string fresh_line(int fd) { return draws_in_place(fd) ? "\r\x1b[K" : ""; }

}  // namespace tessera
