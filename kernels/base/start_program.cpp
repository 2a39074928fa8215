#include "kernels/base/start_program.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "kernels/base/check.h"
#include "kernels/base/signals.h"
#include "kernels/base/system_error.h"

namespace tessera {
namespace {

// The attributes and file actions of posix_spawn(), with their ends
struct SpawnSettings {
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_t files;

  SpawnSettings() {
    posix_spawnattr_init(&attributes), posix_spawn_file_actions_init(&files);
    sigset_t none, all;
    sigemptyset(&none), sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes,
                             POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  }
  ~SpawnSettings() { posix_spawnattr_destroy(&attributes), posix_spawn_file_actions_destroy(&files); }
};

}  // namespace

pid_t start_program(const Program& program) {
  SpawnSettings with;
  if (program.input >= 0)
    posix_spawn_file_actions_adddup2(&with.files, program.input, STDIN_FILENO);
  else
    posix_spawn_file_actions_addopen(&with.files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&with.files, STDOUT_FILENO, program.output.c_str(),
                                   O_WRONLY | O_CREAT | O_APPEND, 0666);
  posix_spawn_file_actions_adddup2(&with.files, STDOUT_FILENO, STDERR_FILENO);
#if __GLIBC_PREREQ(2, 34)  // connections to other ranks end with this process
  posix_spawn_file_actions_addclosefrom_np(&with.files, STDERR_FILENO + 1);
#endif
  std::vector<std::string> arguments = program.arguments;
  std::vector<char*> argv;
  for (std::string& each : arguments) argv.push_back(each.data());
  argv.push_back(nullptr);
  pid_t started = 0;
  const int error = posix_spawn(&started, argv[0], &with.files, &with.attributes, argv.data(), environ);
  check(error == 0, "cannot start {}: {}", arguments[0], system_reason(error));
  return started;
}

std::string how_it_ended(int status) {
  return WIFSIGNALED(status) ? "was ended by " + name_of_signal(WTERMSIG(status))
                             : fmt::format("ended with exit code {}", WEXITSTATUS(status));
}

}  // namespace tessera
