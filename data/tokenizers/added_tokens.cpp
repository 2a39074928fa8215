#include "data/tokenizers/added_tokens.h"

#include <algorithm>
#include <functional>

#include "data/tokenizers/regex.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

// Unicode's White_Space
bool is_blank(uint32_t code) {
  return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F ||
         code == 0x205F || code == 0x3000;
}

CodePoint last_code_point(std::string_view text) {
  size_t bytes = 1;
  while (bytes < text.size() && bytes < 4 && (text[text.size() - bytes] & 0xC0) == 0x80) ++bytes;
  const auto last = first_code_point(text.substr(text.size() - bytes));
  return last ? *last : CodePoint{.code = 0xFFFD, .bytes = 1};
}

size_t blanks_at_start(std::string_view text) {
  size_t end = 0;
  for (auto next = first_code_point(text); next && is_blank(next->code);
       next = first_code_point(text.substr(end)))
    end += next->bytes;
  return end;
}

size_t blanks_at_end(std::string_view text) {
  size_t bytes = 0;
  while (bytes < text.size()) {
    const CodePoint last = last_code_point(text.substr(0, text.size() - bytes));
    if (!is_blank(last.code)) break;
    bytes += last.bytes;
  }
  return bytes;
}

// Letters, marks, digits, connectors, joiners, and letters in circles and squares
constexpr const char* kWordCharacter =
    "[\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\u200c\u200d\u24b6-\u24e9\U0001f130-\U0001f149\U0001f150-\U0001f169"
    "\U0001f170-\U0001f189]";

bool is_word(std::string_view character) {
  static const Regex word(kWordCharacter, "added tokens");
  Regex::Scratch scratch;
  return utf8_prefix(character) == character.size() && word.find(character, 0, scratch).has_value();
}

bool stands_alone(std::string_view text, size_t first, size_t last) {
  if (first > 0) {
    const size_t bytes = last_code_point(text.substr(0, first)).bytes;
    if (is_word(text.substr(first - bytes, bytes))) return false;
  }
  const auto after = first_code_point(text.substr(last));
  return !after || !is_word(text.substr(last, after->bytes));
}

}  // namespace

std::string_view without_outer_blanks(std::string_view text) {
  text.remove_prefix(blanks_at_start(text));
  text.remove_suffix(blanks_at_end(text));
  return text;
}

AddedTokenFinder::AddedTokenFinder(const std::vector<AddedToken>& tokens, bool normalized,
                                   const std::function<std::string(std::string_view)>& normalize) {
  for (const AddedToken& token : tokens) {
    if (token.normalized != normalized) continue;
    const std::string content = normalized ? normalize(token.content) : token.content;
    if (!by_content_.emplace(content, &token).second) continue;  // the first of the same counts
    has_others_ = has_others_ || !token.special;
    std::vector<size_t>& lengths = lengths_[static_cast<unsigned char>(content[0])];
    const auto at = std::ranges::lower_bound(lengths, content.size(), std::greater<>());
    if (at == lengths.end() || *at != content.size()) lengths.insert(at, content.size());
  }
}

const AddedToken* AddedTokenFinder::token_at(std::string_view text, size_t at, size_t& bytes) const {
  for (const size_t length : lengths_[static_cast<unsigned char>(text[at])]) {
    const auto found = by_content_.find(text.substr(at, length));
    if (found == by_content_.end()) continue;
    bytes = found->first.size();
    return found->second;
  }
  return nullptr;
}

void AddedTokenFinder::split(std::string_view text, SpecialTokens special,
                             const std::function<void(std::string_view)>& on_text,
                             const std::function<void(const AddedToken&)>& on_token) const {
  size_t done = 0;  // bytes that were given on
  const auto give_text = [&](size_t end) {
    if (end > done) on_text(text.substr(done, end - done));
    done = end;
  };
  for (size_t at = 0; at < text.size();) {
    size_t bytes = 0;
    const AddedToken* token = token_at(text, at, bytes);
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t first = at, last = at + bytes;
    at = last;  // a match that does not count hides those inside it, too
    if (token->special && special == SpecialTokens::kAsText) continue;
    if (token->single_word && !stands_alone(text, first, last)) continue;
    if (token->strip_left) first -= blanks_at_end(text.substr(0, first));
    if (token->strip_right) last += blanks_at_start(text.substr(last));
    give_text(std::max(first, done));
    on_token(*token);
    done = last;  // as Hugging Face's does: where blanks were taken before, some may come again
  }
  give_text(text.size());
}

}  // namespace tessera
