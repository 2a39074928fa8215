// The first and the last calls of every program.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "kernels/base/check.h"
#include "kernels/base/status_line.h"
#include "kernels/base/system_error.h"

namespace tessera {

// What the program printed stays in a buffer until it exits, so a full disk is only found then. It is no
// error if the reader of the output has exited.
inline void flush_at_exit() {
  const SystemCall flush = std::fflush(stdout) == 0 || errno == EPIPE;
  if (flush.worked) return;
  print_stderr(fmt::format("{}: error: cannot write to standard output: {}\n", program_invocation_short_name,
                           system_reason(flush.error)));
  _exit(1);
}

// Call it first in main(). If the caller closed standard input, output or error, it becomes /dev/null:
// otherwise a file opened later would get its number, and printed text would be written to that file. A
// write above the limit of file size fails with an error; by default a signal would end the program without
// a message. The exit code is 1 if what was printed could not be written.
inline void start_process() {
  for (const int fd : {0, 1, 2})  // open() takes the lowest number that is free
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY) != fd) break;
  std::signal(SIGXFSZ, SIG_IGN);
  std::atexit(flush_at_exit);
}

// The program continues when the reader of its output exits.
inline void outlive_readers() { std::signal(SIGPIPE, SIG_IGN); }

// An error that another process prints: the program that it ends prints nothing.
struct PrintedElsewhere : Error {
  PrintedElsewhere(const std::string& text, int code) : Error(text), exit_code(code) {}
  int exit_code;
};

// What `run` returns. If it throws, the error is printed on stderr as
//   prepare: error: the input a.txt does not exist
// and the exit code is 1.
template <class Run>
int exit_code_of(const char* program, Run&& run) try {
  return run();
} catch (const PrintedElsewhere& error) {
  return error.exit_code;
} catch (const std::exception& error) {
  print_stderr(fmt::format("{}: error: {}\n", program, error_text(error)));
  return 1;
}

}  // namespace tessera
