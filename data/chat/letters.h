// What Python's str knows of characters: letters and digits of Unicode, upper and lower case.
#pragma once

#include <cstdint>
#include <string_view>

#include "data/chat/text.h"

namespace tessera::jinja {

inline constexpr uint8_t kAlphabetic = 1, kDecimal = 2, kDigit = 4, kNumeric = 8, kPrintable = 16;
bool has_property(uint32_t code, uint8_t any_of);
int decimal_of(uint32_t code);  // its value; -1: it is no digit
bool is_lower(uint32_t code);
bool is_upper(uint32_t code);
bool is_title(uint32_t code);
bool is_blank(uint32_t code);  // str.isspace()

bool has_only(const Text& text,
              uint8_t any_of);  // at least one character, and each has one of the properties
// str.islower() and the others: at least one letter has a case
bool all_lower(const Text& text);
bool all_upper(const Text& text);
bool all_titled(const Text& text);

Text in_upper_case(const Text& text);
Text in_lower_case(const Text& text);
Text capitalized(const Text& text);
Text titled(const Text& text);
Text titled_by_filter(const Text& text);  // Jinja's, which begins words at other places
Text in_folded_case(const Text& text);    // casefold()
Text with_swapped_case(const Text& text);

}  // namespace tessera::jinja
