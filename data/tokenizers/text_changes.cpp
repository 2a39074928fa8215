#include "data/tokenizers/text_changes.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

// Changes that multiply a text may make it this large, and no larger.
constexpr size_t kMostGrowth = 64;              // bytes for one of the text
constexpr size_t kMostAdded = size_t{1} << 16;  // and besides

// A text that is made of others, up to a size
class Made {
 public:
  Made(const TextChange& change, size_t most) : change_(change), most_(most) {}
  void add(std::string_view text) {
    if (text.size() > most_ - text_.size()) refuse();
    text_ += text;
  }
  std::string take() && { return std::move(text_); }

 private:
  [[noreturn]] void refuse() const {
    constexpr size_t kNamed = 40;
    const bool is_prepend = change_.pattern.empty();
    const std::string_view named = is_prepend ? change_.content : change_.pattern;
    fail(
        "the tokenizer's normalizer makes more than {} bytes of a text of {}, at its {} of {}{}: a tokenizer "
        "does so "
        "by mistake, or to take all memory. Use another one",
        most_, (most_ - kMostAdded) / kMostGrowth, is_prepend ? "Prepend" : "Replace",
        in_quotes(named.substr(0, kNamed)), named.size() > kNamed ? "..." : "");
  }

  const TextChange& change_;
  size_t most_;
  std::string text_;
};

std::string replaced(std::string_view text, const TextChange& change, size_t most) {
  Made out(change, most);
  for (size_t done = 0;;) {
    const size_t at = text.find(change.pattern, done);
    out.add(text.substr(done, at == text.npos ? at : at - done));
    if (at == text.npos) return std::move(out).take();
    out.add(change.content);
    done = at + change.pattern.size();
  }
}

struct RegexOf {
  const Regex& regex;
  Regex::Scratch& scratch;
};
std::string replaced(std::string_view text, const TextChange& change, const RegexOf& of, size_t most) {
  Made out(change, most);
  size_t done = 0;
  while (done < text.size()) {
    const auto match = of.regex.find(text, done, of.scratch);
    if (!match) break;
    out.add(text.substr(done, match->first - done));
    out.add(change.content);
    done = match->last;
  }
  out.add(text.substr(done));
  return std::move(out).take();
}

size_t most_of(std::string_view text) { return text.size() * kMostGrowth + kMostAdded; }

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
  const size_t most = most_of(text);
  std::string made(text);
  for (const auto& [change, regex] : steps_) {
    if (regex) {
      made = replaced(made, change, {*regex, scratch}, most);
    } else if (!change.pattern.empty()) {
      made = replaced(made, change, most);
    } else if (prepends && !made.empty()) {
      Made out(change, most);
      out.add(change.content);
      out.add(made);
      made = std::move(out).take();
    }
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
    if (!change.pattern.empty()) blank = replaced(blank, change, most_of(blank));
    if (blank.empty()) return false;
  }
  return true;
}

}  // namespace tessera
