// Error, fail() and check(). A message says what failed, what was found, what was expected and how to fix
// it.
#pragma once

#ifdef __CUDACC__
// nvcc cannot evaluate fmt's compile-time check of a format; the same check then runs at run time.
#define FMT_CONSTEVAL
#define FMT_USE_CONSTEXPR 1
#endif
#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace tessera {

// Every error of the program. main() prints what() and exits with 1.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

// check(holds, ...) fails with the formatted message unless `holds`. The message is built only on failure.
template <class... Args>
void check(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) fail(format, std::forward<Args>(args)...);
}

}  // namespace tessera
