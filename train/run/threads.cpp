#include "train/run/threads.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace tessera {

void wait_without_spinning(char** argv) {
  prctl(PR_SET_NAME, program_invocation_short_name);  // as it is "exe" otherwise, in top and for pkill
  if (std::getenv("OMP_WAIT_POLICY")) return;
  setenv("OMP_WAIT_POLICY", "passive", 1);
  execv("/proc/self/exe", argv);  // returns only if it fails; the program then runs as it is
}

}  // namespace tessera
