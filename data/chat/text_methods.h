// What Python's str does, on texts that remember where their bytes came from.
#pragma once

#include <cstdint>
#include <string_view>

#include "data/chat/value.h"

namespace tessera::jinja {

// Bytes of blanks, of those that Python's str.isspace() knows
size_t blanks_at_start(std::string_view text);
size_t blanks_at_end(std::string_view text);

// Which sides of a text are stripped
struct Sides {
  bool left = true, right = true;
};
// Without the characters at its sides that are in `characters`; nullptr: without blanks
Text strip(const Text& text, Sides sides, const Text* characters = nullptr);

// At most `most` times, from the left; -1: everywhere
Text replace(const Text& text, std::string_view old, const Text& with, int64_t most = -1);

// The method of a str with this name, on `text`. Error, from the call: arguments that it does not take.
// Nothing, as an undefined value: a method that is not known.
Value text_method(const Text& text, std::string_view name);

Text join(const List& texts, const Text& between);

// Error: a letter that is not ASCII, since Python's rules for those are not implemented
Text in_upper_case(const Text& text);
Text in_lower_case(const Text& text);
Text capitalized(const Text& text);
Text titled(const Text& text, bool like_python);  // Jinja's filter begins words at other places

}  // namespace tessera::jinja
