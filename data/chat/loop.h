// What {% for %} knows as `loop`.
#pragma once

#include <functional>
#include <optional>

#include "data/chat/value.h"

namespace tessera::jinja {

struct Loop {
  std::shared_ptr<const List> list;  // none once the loop has ended
  size_t at = 0, length = 0;
  int depth = 1;
  std::optional<List> changed;                 // what loop.changed() was given last
  std::function<Value(const Value&)> recurse;  // of a recursive loop: writes the loop over other elements
};

// Undefined: there is no such field
Value loop_field(const std::shared_ptr<Loop>& loop, std::string_view name);

}  // namespace tessera::jinja
