// Changes of a text, in their order: matches become other texts, a text is put before.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/definition.h"
#include "data/tokenizers/regex.h"

namespace tessera {

class TextChanges {
 public:
  // `where` begins the messages. Error: an expression that is not known.
  TextChanges(const std::vector<TextChange>& changes, const std::string& where);

  bool empty() const { return steps_.empty(); }
  // `text` is well-formed UTF-8. `prepends`: nothing is put before it otherwise. Error: it becomes more
  // than 64 times as long
  std::string apply(std::string_view text, Regex::Scratch& scratch, bool prepends = true) const;

  bool prepend() const;  // Whether something is put before texts
  // Whether a text between its other characters has no blank after the changes.
  bool remove_blanks() const;
  // Whether a text that is cut before a blank, which a letter of ASCII is before, is changed as one that is
  // not cut, and letters stay what they are.
  bool keep_words_apart() const;

 private:
  struct Step {
    TextChange change;
    std::optional<Regex> regex;  // unless it is literal
  };
  std::vector<Step> steps_;
};

// Whether `text` has a letter of ASCII with `next` after it.
bool has_letter_before(std::string_view text, std::string_view next);
bool is_ascii_letter(char c);

}  // namespace tessera
