// Numbers in texts, as Python's int() and float() read them.
#pragma once

#include <optional>
#include <string_view>

#include "data/chat/value.h"

namespace tessera::jinja {

std::optional<Value> whole_in(std::string_view text, int64_t base);  // an integer of any size in base 10
std::optional<double> real_in(std::string_view text);
Value whole_part(double number);  // of a finite one, without the digits after the point
Value whole_of_digits(std::string_view digits, bool negative);

}  // namespace tessera::jinja
