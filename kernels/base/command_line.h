// How every program reads its command line: the words of an error, of --help and of --version.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

struct CommandLine {
  CLI::App& app;  // named as the program is, "train"
  int argc;
  char** argv;
  // What to say of a word that is no option but means something elsewhere; "" where it means nothing.
  std::function<std::string(std::string_view)> advice = {};
};

// Parses the command line, and adds --version. Returns the code to exit with at once, if any: 0 after --help
// (lines of at most 100 columns) and --version; 1 after an error, which is then said on stderr as
//   train: error: there is no option --confg; did you mean --config? (see ./train --help)
std::optional<int> parse_command_line(const CommandLine& line);

}  // namespace tessera
