// What a value has: its elements, its fields, its methods.
#pragma once

#include <string_view>

#include "data/chat/value.h"

namespace tessera::jinja {

// Jinja's of.name, and of[key]. Undefined: there is none. Error: `of` is undefined; Python has such a
// method, and it is not supported
Value attribute_of(const Value& of, std::string_view name);
Value item_of(const Value& of, const Value& key);
// of[first:last:step]; None where a bound is left out
struct Bounds {
  Value first, last, step;
};
Value slice_of(const Value& of, const Bounds& bounds);

}  // namespace tessera::jinja
