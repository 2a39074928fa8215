// What every program of the project does first.
#pragma once

#include <fcntl.h>

#include <csignal>

namespace tessera {

// Call it first in main(). Standard input, output and error that the caller has closed become /dev/null: a
// file opened later would take their numbers, and what is printed would end up in it. A write over a limit of
// file size fails with an error that can be told; by default a signal ends the program without a word.
inline void start_process() {
  for (const int fd : {0, 1, 2})  // open() takes the lowest number that is free
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY) != fd) break;
  std::signal(SIGXFSZ, SIG_IGN);
}

// For work that is worth more than what it prints: output that nobody reads ends the program no more.
inline void outlive_readers() { std::signal(SIGPIPE, SIG_IGN); }

}  // namespace tessera
