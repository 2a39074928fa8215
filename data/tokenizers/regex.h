// Regular expressions of tokenizers, which are written for Oniguruma, run by PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

class Regex {
 public:
  struct Match {
    size_t first, last;  // bytes [first, last) of the text
  };
  // What a search needs beside the expression; for one thread at a time.
  class Scratch {
   public:
    Scratch();
    ~Scratch();
    Scratch(Scratch&&) noexcept;

   private:
    friend class Regex;
    struct Parts;
    std::unique_ptr<Parts> parts_;
  };

  // Known are: characters, classes [...], the beginning ^ and the end $ of a line, the escapes \s \S \d \D
  // \p{L} (general categories) \r \n \t and of punctuation, alternatives, groups (...) (?:...) (?i:...)
  // (?>...), looks ahead and back, and the repeats * + ? {1,3}, also lazy and, except for {1,3}, possessive.
  // They mean the same in both dialects: \s has the 25 blanks of Unicode, and letters are Unicode's. A line
  // ends before "\n", and with the text.
  // `where` begins the messages. Error: anything else; an expression that may match nothing.
  Regex(const std::string& pattern, const std::string& where);
  // The text itself. Error: an empty one.
  static Regex literal(const std::string& text, const std::string& where);
  ~Regex();
  Regex(Regex&&) noexcept;

  // The first match in `text`, well-formed UTF-8, that begins at `from` or after. Error: too much work, as
  // for nested repeats.
  std::optional<Match> find(std::string_view text, size_t from, Scratch& scratch) const;

 private:
  struct Code;
  Regex(const std::string& pattern, const std::string& where, bool literal);
  std::unique_ptr<Code> code_;
};

}  // namespace tessera
