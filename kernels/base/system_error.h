// What the system says when one of its calls fails, in this program's words.
#pragma once

#include <cerrno>
#include <exception>
#include <string>
#include <utility>

#include "kernels/base/check.h"

namespace tessera {

std::string system_reason(int error);  // "Permission denied"

// Whether a call of the system worked. It takes errno before anything else can change it: the other arguments
// of a function are computed before this object or after it, in any order.
struct SystemCall {
  SystemCall(bool has_worked) : worked(has_worked), error(errno) {}  // not explicit: call() == 0 is one
  bool worked;
  int error;
};

// As check(); the last {} of the format is the system's reason:
//   check_system(unlink(path.c_str()) == 0, "cannot remove {}: {}", path);
template <class... Args>
void check_system(SystemCall call, fmt::format_string<Args..., std::string> format, Args&&... args) {
  if (!call.worked) fail(format, std::forward<Args>(args)..., system_reason(call.error));
}

// what() of an exception. Those of std::filesystem and of new have texts that no user understands: here
// "cannot remove PATH: Input/output error".
std::string error_text(const std::exception& error);

}  // namespace tessera
