// Runs one of the project's programs as its users run it.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/root_rights.h"

namespace tessera::testing {

// The address sanitizer reserves terabytes of addresses: a program built with it cannot start under
// `ulimit -v`.
#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kAddressesCanBeLimited = false;
#else
inline constexpr bool kAddressesCanBeLimited = true;
#endif

// True as soon as holds() is; false where it is not after a time that is enough on a busy machine, too.
template <class Holds>
bool wait_until(Holds&& holds) {
  const auto start = std::chrono::steady_clock::now();
  while (!holds()) {
    if (std::chrono::steady_clock::now() - start > std::chrono::minutes(2)) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

struct ProcessResult {
  int status;  // of the exit, or -1 when a signal ended the program
  std::string out, error;
};

class Process {
 public:
  struct Options {
    std::filesystem::path folder = ".";  // where it runs; its output is kept beside it
    rlim_t most_file_bytes = 0;          // > 0 limits what it may write into one file, like a full disk
    bool as_nobody = false;              // run by root, it gives up root's right to read and write everywhere
    bool ignores_hang_up = false;        // as under nohup
    int out = -1;                        // >= 0: this is its standard output
    bool closed_streams = false;         // it has no standard input, output and error
  };

  Process(std::string program, std::vector<std::string> arguments, const Options& options)
      : logs_(std::filesystem::absolute(options.folder).string() + "_") {
    if (options.as_nobody &&
        geteuid() == 0) {  // the program may lie where only another user, or root, may look
      const auto copy = std::filesystem::absolute(options.folder) / std::filesystem::path(program).filename();
      std::filesystem::copy_file(program, copy, std::filesystem::copy_options::overwrite_existing);
      program = copy;
    }
    pid_ = fork();
    if (pid_ != 0) return;
    arguments.insert(arguments.begin(), program);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    if (chdir(options.folder.c_str()) != 0) _exit(125);
    for (const auto& [name, fd] : {std::pair("stdout", STDOUT_FILENO), std::pair("stderr", STDERR_FILENO)})
      if (dup2(open((logs_ + name).c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), fd) < 0) _exit(125);
    if (options.out >= 0) dup2(options.out, STDOUT_FILENO);
    for (int fd = 0; options.closed_streams && fd < 3; ++fd) close(fd);
    const struct rlimit limit = {.rlim_cur = options.most_file_bytes, .rlim_max = options.most_file_bytes};
    if (options.most_file_bytes > 0) {
      std::signal(SIGXFSZ, SIG_IGN);  // inherited: the program's write() fails instead
      if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(125);
    }
    if (options.as_nobody && !give_up_rights_over_files()) _exit(125);
    // Tests that run in the background of a shell, or under nohup, have them ignored.
    std::signal(SIGINT, SIG_DFL);
    setenv("TESSERA_CPU_PEAK", "0.1", 0);  // else most of a short run is its measurement
    std::signal(SIGHUP, options.ignores_hang_up ? SIG_IGN : SIG_DFL);
    execv(program.c_str(), argv.data());
    _exit(126);
  }

  pid_t pid() const { return pid_; }
  void signal(int number) const { kill(pid_, number); }

  ProcessResult finish() {
    int status = 0;
    waitpid(pid_, &status, 0);
    ProcessResult result{WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(logs_ + "stdout"),
                         read(logs_ + "stderr")};
    std::filesystem::remove(logs_ + "stdout");
    std::filesystem::remove(logs_ + "stderr");
    return result;
  }

 private:
  static std::string read(const std::string& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

  std::string logs_;
  pid_t pid_ = -1;
};

// Whether a process has ended; one that waits as a zombie for its parent has.
inline bool is_gone(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::stringstream stat;
  stat << file.rdbuf();
  return stat.str().empty() || stat.str().find(") Z") != std::string::npos;
}

inline ProcessResult run_process(const std::string& program, const std::vector<std::string>& arguments,
                                 const Process::Options& options) {
  return Process(program, arguments, options).finish();
}

// Runs a line of bash. `words` are "$0", "$1", ... in it: a path may have blanks, so it never stands in the
// line.
inline ProcessResult run_shell(const std::string& line, std::vector<std::string> words,
                               const Process::Options& options) {
  words.insert(words.begin(), {"-c", line});
  return run_process("/bin/bash", words, options);
}

}  // namespace tessera::testing
