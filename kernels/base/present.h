// present(optional): the value of an optional that must have one at this place in the code.
#pragma once

#include <optional>
#include <source_location>
#include <utility>

#include "kernels/base/check.h"

namespace tessera {

// If it has none after all, that is an error with file and line. *optional would read memory that was never
// written.
template <class Optional>
[[nodiscard]] constexpr auto&& present(Optional&& optional,
                                       std::source_location place = std::source_location::current()) {
  if (!optional.has_value())
    fail("{}:{}: a value is missing. This is a fault of the program: please report it", place.file_name(),
         place.line());
  return *std::forward<Optional>(optional);
}

}  // namespace tessera
