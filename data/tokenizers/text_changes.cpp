#include "data/tokenizers/text_changes.h"

#include <algorithm>

namespace tessera {
namespace {

std::string replaced(std::string_view text, const TextChange& change) {
  std::string out;
  out.reserve(text.size() + text.size() / 2);
  for (size_t done = 0;;) {
    const size_t at = text.find(change.pattern, done);
    out += text.substr(done, at == text.npos ? at : at - done);
    if (at == text.npos) return out;
    out += change.content;
    done = at + change.pattern.size();
  }
}

std::string replaced(std::string_view text, const Regex& regex, std::string_view content,
                     Regex::Scratch& scratch) {
  std::string out;
  size_t done = 0;
  while (done < text.size()) {
    const auto match = regex.find(text, done, scratch);
    if (!match) break;
    out += text.substr(done, match->first - done);
    out += content;
    done = match->last;
  }
  return out += text.substr(done);
}

}  // namespace

bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

bool has_letter_before(std::string_view text, std::string_view next) {
  for (size_t i = 0; i + 1 < text.size(); ++i)
    if (is_ascii_letter(text[i]) && text.substr(i + 1).starts_with(next)) return true;
  return false;
}

TextChanges::TextChanges(const std::vector<TextChange>& changes, const std::string& where) {
  for (const TextChange& change : changes) {
    const bool has_regex = !change.literal && !change.pattern.empty();
    steps_.push_back({change, has_regex ? std::optional<Regex>(Regex(change.pattern, where)) : std::nullopt});
  }
}

std::string TextChanges::apply(std::string_view text, Regex::Scratch& scratch, bool prepends) const {
  std::string made(text);
  for (const auto& [change, regex] : steps_) {
    if (regex)
      made = replaced(made, *regex, change.content, scratch);
    else if (!change.pattern.empty())
      made = replaced(made, change);
    else if (prepends && !made.empty())
      made.insert(0, change.content);
  }
  return made;
}

bool TextChanges::prepend() const {
  return std::ranges::any_of(steps_, [](const Step& step) { return step.change.pattern.empty(); });
}

bool TextChanges::remove_blanks() const {
  bool removed = false;
  for (const auto& [change, regex] : steps_) {
    if (change.content.find(' ') != change.content.npos)
      removed = false;
    else if (!regex && change.pattern == " ")
      removed = true;
  }
  return removed;
}

bool TextChanges::keep_words_apart() const {
  std::string blank = " ";
  for (const auto& [change, regex] : steps_) {
    if (regex || has_letter_before(change.pattern, blank)) return false;
    if (change.pattern.size() == 1 && is_ascii_letter(change.pattern[0])) return false;
    if (!change.pattern.empty()) blank = replaced(blank, change);
    if (blank.empty()) return false;
  }
  return true;
}

}  // namespace tessera
