// The version of a program and of its libraries.
#pragma once

#include <string>
#include <string_view>

namespace tessera {

// For --version: the program, Tessera's version, the git commit and whether its sources were changed, the
// compiler, and the versions of CUDA, cuDNN and NCCL whose headers were used. Ends with a line break.
std::string version_text(std::string_view program);

}  // namespace tessera
