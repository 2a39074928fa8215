#include "train/threads.h"

#include <unistd.h>

#include <cstdlib>

namespace tessera {

void wait_without_spinning(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY")) return;
  setenv("OMP_WAIT_POLICY", "passive", 1);
  execv("/proc/self/exe", argv);  // returns only if it fails; the program then runs as it is
}

}  // namespace tessera
