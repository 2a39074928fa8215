#include "kernels/base/descriptor.h"

#include <fcntl.h>

#include <cstring>

#include "kernels/base/check.h"
#include "kernels/base/system_error.h"

namespace tessera {

Pipe make_pipe(std::string_view what_for) {
  int ends[2];
  check_system(pipe2(ends, O_CLOEXEC) == 0, "cannot make a pipe for {}: {}", what_for);
  return {.read = Descriptor(ends[0]), .write = Descriptor(ends[1])};
}

}  // namespace tessera
