// The command line of every program: errors, --help and --version.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/options.h"

namespace tessera {

struct CommandLine {
  Options& options;  // has the program's name, such as "train"
  int argc;
  char** argv;
  // Advice for an argument that is not an option here but has a meaning elsewhere; "" if it has none.
  std::function<std::string(std::string_view)> advice = {};
  // For a program with subcommands: what a subcommand is called, and how a message asks for one.
  std::string_view subcommand = "benchmark", request = "name what to measure";
};

// Parses the command line, and adds --version. Returns the code to exit with at once, if any: 0 after --help
// (lines of at most 100 columns) and --version; 1 after an error, which is printed on stderr as
//   train: error: there is no option --confg; did you mean --config? (see ./train --help)
std::optional<int> parse_command_line(const CommandLine& line);

// A whole main(): exit_code_of() of `run`. The program goes on when the readers of its output have exited.
int run_program(const char* name, int (*run)(int, char**), int argc, char** argv);

}  // namespace tessera
