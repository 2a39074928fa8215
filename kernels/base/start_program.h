// Starting another program that works beside this one.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

namespace tessera {

struct Program {
  std::vector<std::string> arguments;  // the first is its path
  std::filesystem::path output;        // what it prints is added to this file
  int input = -1;                      // its standard input; below 0: empty
};
// In a process group of its own, which has the number that is returned: Ctrl-C does not end it. It has no
// other file of this process, and no signal is blocked or ignored. Error: it cannot be started.
pid_t start_program(const Program& program);

// Of a status as waitpid() returns it: "ended with exit code 3", "was ended by SIGKILL"
std::string how_it_ended(int status);

}  // namespace tessera
