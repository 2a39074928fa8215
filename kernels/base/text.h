// Text in messages: words quoted, listed and corrected; figures and times.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

struct CodePoint {
  uint32_t code;
  size_t bytes;  // that encode it
};
// The code point that `text` begins with; none if its first bytes are not well-formed UTF-8.
std::optional<CodePoint> first_code_point(std::string_view text);

// The number of bytes before the first that is not part of well-formed UTF-8.
size_t utf8_prefix(std::string_view text);

// Appends the UTF-8 of a code point.
void append_utf8(std::string& out, uint32_t code);

// For terminals and logs: control characters and bytes that are not UTF-8 become U+FFFD, a carriage return
// its symbol, U+240D; newlines and tabs stay.
std::string printable(std::string_view text);

// `text` in double quotes, on one line, with control characters escaped: also a YAML scalar.
std::string in_quotes(std::string_view text);

// "a, b or c"
std::string join_words(const std::vector<std::string_view>& words, std::string_view last = " or ");

// Levenshtein: insertions, deletions and replacements that turn `a` into `b`.
size_t edit_distance(std::string_view a, std::string_view b);

// The candidates with the least distance; none if that distance is too large for a misspelled word of
// `length` bytes.
std::vector<std::string_view> nearest(std::span<const std::string_view> candidates, size_t length,
                                      const std::function<size_t(std::string_view)>& distance);

// The candidates nearest to `word` by edit_distance()
std::vector<std::string_view> nearest(std::span<const std::string_view> candidates, std::string_view word);

// "did you mean a or b?"
template <class Words>
std::string did_you_mean(const Words& near) {
  return "did you mean " + join_words({near.begin(), near.end()}) + "?";
}

// `unknown key "stps"; did you mean "steps"?`, or, where none is near, `unknown key "x"; known: a, b`
std::string unknown_word(std::string_view what, std::string_view word,
                         const std::vector<std::string_view>& near,
                         const std::vector<std::string_view>& known);
std::string unknown_word(std::string_view what, std::string_view word,
                         const std::vector<std::string_view>& known);

std::string utc_time();                   // now, "2026-01-31T12:34:56.789Z"
std::string format_count(double value);   // "512,345"
std::string format_ranks(int64_t ranks);  // "4 ranks x ", before a rank's share of a step; of one, ""
std::string format_bytes(int64_t bytes);  // "24.3 GiB", "512 B"

}  // namespace tessera
