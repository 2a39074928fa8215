// The first calls of every program.
#pragma once

#include <fcntl.h>

#include <csignal>

namespace tessera {

// Call it first in main(). If the caller closed standard input, output or error, it becomes /dev/null:
// otherwise a file opened later would get its number, and printed text would be written to that file. A
// write above the limit of file size fails with an error; by default a signal would end the program without
// a message.
inline void start_process() {
  for (const int fd : {0, 1, 2})  // open() takes the lowest number that is free
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY) != fd) break;
  std::signal(SIGXFSZ, SIG_IGN);
}

// The program continues when the reader of its output exits.
inline void outlive_readers() { std::signal(SIGPIPE, SIG_IGN); }

}  // namespace tessera
