// The methods of Python's str.
#pragma once

#include <span>
#include <string_view>

#include "data/chat/value.h"

namespace tessera::jinja {

// The method with this name, of a text. Error, from the call: arguments that it does not take. Undefined:
// there is none.
Value text_method(const Value& text, std::string_view name);
std::span<const char* const> unsupported_text_methods();

}  // namespace tessera::jinja
