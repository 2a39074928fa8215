#include "kernels/base/version.h"

#include <fmt/core.h>

#include "tessera_build.h"   // by version.cmake, when it configures: TESSERA_BUILT_...
#include "tessera_commit.h"  // by version.cmake, in each build: TESSERA_COMMIT

namespace tessera {

std::string version_text(std::string_view program) {
  return fmt::format(
      "{} of Tessera {}\n"
      "commit    {}\n"
      "compiler  {}, {}, CPU {}\n"
      "CUDA      {}\n"
      "cuDNN     {}\n"
      "NCCL      {}\n",
      program, TESSERA_BUILT_VERSION, TESSERA_COMMIT, TESSERA_BUILT_COMPILER, TESSERA_BUILT_TYPE,
      TESSERA_BUILT_CPU, TESSERA_BUILT_CUDA, TESSERA_BUILT_CUDNN, TESSERA_BUILT_NCCL);
}

}  // namespace tessera
