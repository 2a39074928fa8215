// Starting another program that works beside this one.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

namespace tessera {

struct Program {
  std::vector<std::string> arguments;  // the first is its path
  std::filesystem::path output;        // its output is appended to this file
  int input = -1;                      // its standard input; below 0: empty
};
// The program runs in a process group of its own, whose number is returned, so Ctrl-C does not end it. It
// inherits no other file of this process, and no signal is blocked or ignored in it. Error: it cannot be
// started.
pid_t start_program(const Program& program);

// Describes a status of waitpid(): "ended with exit code 3", "was ended by SIGKILL"
std::string how_it_ended(int status);

}  // namespace tessera
