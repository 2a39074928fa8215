// A value of a configuration as the YAML has it, and what all kinds of values read it with.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace tessera {

// A value as the YAML has it
struct Written {
  enum class Kind { kNothing, kPlain, kQuoted, kList, kMap };
  std::string key;    // whose value this is
  std::string where;  // for messages: file:line:column, or --set key=value
  Kind kind = Kind::kNothing;
  std::string text;  // kPlain and kQuoted: without quotes, escapes resolved
  // kMap: those of its keys; kList: its own; without the values of these in turn
  std::vector<Written> values = {};
  // A word that the key takes besides those of its kind: messages name it, too
  std::string_view also = {};

  std::string describe() const;  // "twelve" in quotes, -3, the text "12", a list, nothing
};

// Error: the value, which must be what is `expected`
[[noreturn]] void refuse(const Written& value, const std::string& expected, const std::string& advice = "");

// A number as YAML 1.1 and 1.2 both understand it, so that no other reader of the file sees another number:
// no hex, no underscores, and no leading zeros, which YAML 1.1 takes for octal. Sets `out` only if all of
// `text` is one.
std::errc parse_number(std::string_view text, int64_t& out);
std::errc parse_number(std::string_view text, double& out);

// The entries of a list, also of one that is a text; none for "none"
std::vector<std::string> entries_of(const Written& value, const std::string& expected);

// The place of a value among the words that its key accepts. Error: it is none of them.
size_t read_word(const Written& value, const std::vector<std::string_view>& words);
// The places of the words of a value such as "norms+mlp"; none for "none". Error: a word that is none of
// them, or is there twice.
std::vector<size_t> read_words(const Written& value, const std::vector<std::string_view>& words);

}  // namespace tessera
