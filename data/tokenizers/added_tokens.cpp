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

AddedTokenFinder::AddedTokenFinder(const std::vector<AddedToken>& tokens, bool normalized,
                                   const std::function<std::string(std::string_view)>& normalize) {
  first_.fill(kNone);
  for (const AddedToken& token : tokens)
    if (token.normalized == normalized) add(normalized ? normalize(token.content) : token.content, token);
}

void AddedTokenFinder::add(std::string_view content, const AddedToken& token) {
  int32_t node = kNone;
  for (const char character : content) {
    const auto byte = static_cast<unsigned char>(character);
    const int32_t first = node == kNone ? first_[byte] : nodes_[static_cast<size_t>(node)].child;
    int32_t next = first;
    while (next != kNone && nodes_[static_cast<size_t>(next)].byte != byte)
      next = nodes_[static_cast<size_t>(next)].sibling;
    if (next == kNone) {
      next = static_cast<int32_t>(nodes_.size());
      nodes_.push_back({.byte = byte, .sibling = first});
      (node == kNone ? first_[byte] : nodes_[static_cast<size_t>(node)].child) = next;
    }
    node = next;
  }
  Node& last = nodes_[static_cast<size_t>(node)];
  if (last.token != nullptr) return;  // the first of the same counts
  last.token = &token;
  has_others_ = has_others_ || !token.special;
}

// The longest content that begins at `at`; null: none does.
const AddedToken* AddedTokenFinder::token_at(std::string_view text, size_t at, size_t& bytes) const {
  const AddedToken* longest = nullptr;
  size_t end = at;
  for (int32_t node = first_[static_cast<unsigned char>(text[at])]; node != kNone;) {
    const Node& n = nodes_[static_cast<size_t>(node)];
    ++end;
    if (n.token != nullptr) {
      longest = n.token;
      bytes = end - at;
    }
    if (end == text.size()) break;
    node = n.child;
    while (node != kNone && nodes_[static_cast<size_t>(node)].byte != static_cast<unsigned char>(text[end]))
      node = nodes_[static_cast<size_t>(node)].sibling;
  }
  return longest;
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
    if (first_[static_cast<unsigned char>(text[at])] == kNone) {
      ++at;
      continue;
    }
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
