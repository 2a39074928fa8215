// Values as texts: Python's str(), repr() and json.dumps().
#pragma once

#include <string>

#include "data/chat/value.h"

namespace tessera::jinja {

std::string digits_of(double number);  // as repr(): the shortest that give the number back

// Error: a value that Python writes with its address in memory
Text to_text(const Value& value);  // str(); "" where the value is undefined
Text representation(const Value& value);
Text in_ascii(const Text& representation);  // Python's ascii()

struct JsonStyle {
  bool on_lines = false;  // each element on a line, after `indent` for each level
  Text indent = {};
  bool ascii = false, sorted = false;
  Text comma = ", ", colon = ": ";
};
// Error: a value that JSON does not have
Text to_json(const Value& value, const JsonStyle& style = {});

}  // namespace tessera::jinja
