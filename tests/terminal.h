// Runs a program on a terminal of its own, as a person would see it.
#pragma once

#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tests/data/support.h"  // first: it means gtest's namespace `testing`

namespace tessera::testing {

struct TerminalResult {
  int status;          // of the exit, or -1
  std::string output;  // every byte
};

struct Terminal {
  std::filesystem::path folder;
  unsigned short columns = 80;
  std::string term = "xterm";

  // `on_output` sees all that came so far; it may resize the terminal behind the descriptor.
  TerminalResult run(const std::string& program, std::vector<std::string> arguments,
                     const std::function<void(const std::string&, int)>& on_output = {}) const {
    winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    arguments.insert(arguments.begin(), program);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    int master = -1;
    const pid_t pid = forkpty(&master, nullptr, nullptr, &size);
    if (pid == 0) {
      setenv("TERM", term.c_str(), 1);
      unsetenv("COLUMNS");
      setenv("TESSERA_CPU_PEAK", "0.1", 0);  // as in process.h
      std::signal(SIGHUP, SIG_DFL);          // tests under nohup have it ignored
      if (chdir(folder.c_str()) != 0) _exit(125);
      execv(program.c_str(), argv.data());
      _exit(126);
    }
    TerminalResult result{-1, {}};
    char buffer[4096];
    ssize_t count = 0;
    while ((count = read(master, buffer, sizeof buffer)) > 0) {  // at the end: EIO
      result.output.append(buffer, static_cast<size_t>(count));
      if (on_output) on_output(result.output, master);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    close(master);
    if (WIFEXITED(status)) result.status = WEXITSTATUS(status);
    return result;
  }
};

// What stands on the screen, and has scrolled off it, at the end: \r, \n and "erase to the end of the line"
// are carried out; a line never wraps here, so one that is longer than the terminal is seen as such.
struct Screen {
  std::vector<std::string> lines{""};
  size_t longest = 0;  // of all lines at any moment

  explicit Screen(const std::string& output) {
    size_t column = 0;
    for (size_t i = 0; i < output.size(); ++i) {
      std::string& line = lines.back();
      if (output[i] == '\r') {
        column = 0;
      } else if (output[i] == '\n') {
        lines.emplace_back();  // the terminal sends \r with it
      } else if (output.compare(i, 3, "\x1b[K") == 0) {
        line.resize(column);
        i += 2;
      } else {
        line.resize(std::max(line.size(), column + 1));
        line[column++] = output[i];
        longest = std::max(longest, line.size());
      }
    }
  }
};

}  // namespace tessera::testing
