// Parts of texts, as Python's str cuts, changes and joins them.
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
Text replace(const Text& text, const Text& old, const Text& with, int64_t most = -1);

// At most `most` cuts; -1: all. No separator: at blanks
List split(const Text& text, const Text* separator, int64_t most);
List split_from_right(const Text& text, const Text* separator, int64_t most);
List lines_of(const Text& text, bool keep_ends);

// In `width` characters. Python's center() has the odd blank at another side than str.format().
Text centered(const Text& text, int64_t width, const Text& fill = " ");

}  // namespace tessera::jinja
