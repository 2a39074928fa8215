// What every program of the project does first.
#pragma once

#include <fcntl.h>

#include <csignal>

namespace tessera {

// Standard input, output and error that the caller has closed become /dev/null: a file opened later would
// take their numbers, and what is printed would end up in it. Call it first in main().
inline void open_standard_streams() {
  for (const int fd : {0, 1, 2})  // open() takes the lowest number that is free
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY) != fd) return;
}

// A write to a pipe that nobody reads, or over a limit of file size, then fails with an error that can be
// told or survived; by default its signal ends the program.
inline void writes_fail_without_signals() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

}  // namespace tessera
