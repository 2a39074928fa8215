#include "data/tokenizers/symbols.h"

#include <algorithm>
#include <bit>

#include "data/tokenizers/byte_alphabet.h"
#include "data/tokenizers/text_changes.h"

namespace tessera {
namespace {

std::string place_in_text(std::string_view piece, size_t at) {
  return in_quotes(printable(piece.substr(at < 20 ? 0 : at - 20, 40)));
}

std::string no_token_message(std::string_view piece, size_t at, size_t bytes) {
  if (bytes == 1)
    return fmt::format(
        "the text has the byte 0x{:02x}, in {}, for which the tokenizer has no token; expected a tokenizer "
        "with all 256 bytes, or a text without this one",
        static_cast<unsigned char>(piece[at]), place_in_text(piece, at));
  return fmt::format(
      "the text has the character {}, in {}, for which the tokenizer has no token; expected a tokenizer with "
      "all 256 bytes, or a text without this one",
      in_quotes(piece.substr(at, bytes)), place_in_text(piece, at));
}

template <class OnCharacter>
void for_each_character_of(std::string_view text, const OnCharacter& on_character) {
  for (auto next = first_code_point(text); next; next = first_code_point(text)) {
    on_character(next->code);
    text.remove_prefix(next->bytes);
  }
}

}  // namespace

NoToken::NoToken(std::string_view piece, size_t at, size_t bytes)
    : Error(no_token_message(piece, at, bytes)), place(piece.data() + at) {}

Symbols::Symbols(const TokenizerDefinition& definition)
    : byte_level_(definition.byte_level),
      fuse_unknown_(definition.fuse_unknown),
      unknown_(definition.unknown) {
  byte_tokens_.fill(-1);
  for (size_t i = 0; i < definition.tokens.size(); ++i) {
    const std::string& token = definition.tokens[i];
    const auto id = static_cast<int32_t>(i);
    if (byte_level_) {
      if (token.size() == 1) byte_tokens_[static_cast<unsigned char>(token[0])] = id;
      continue;
    }
    const auto character = first_code_point(token);
    if (character && character->bytes == token.size()) {
      if (character->code >= character_tokens_.size()) character_tokens_.resize(character->code + 1, -1);
      character_tokens_[character->code] = id;
    }
    if (const auto byte = byte_of_token(token); definition.byte_fallback && byte) byte_tokens_[*byte] = id;
  }
  has_bytes_ = std::ranges::count(byte_tokens_, -1) == 0;
}

int32_t Symbols::bytes_without_token() const {
  return unknown_ >= 0 ? 0 : static_cast<int32_t>(std::ranges::count(byte_tokens_, -1));
}

Borders::Borders(const TokenizerDefinition& definition, const Symbols& symbols) : symbols_(symbols) {
  if (definition.byte_level || definition.ignore_merges) return;
  const auto is_no_text = [&](int32_t id) {
    return id == definition.unknown ||
           (definition.byte_fallback && byte_of_token(definition.tokens[static_cast<size_t>(id)]));
  };
  std::vector<uint64_t> pairs;
  for (const Merge& merge : definition.merges) {
    if (is_no_text(merge.left) || is_no_text(merge.right)) return;
    uint64_t before = 0;
    bool begins = true;
    for_each_character_of(definition.tokens[static_cast<size_t>(merge.result)], [&](uint32_t code) {
      if (!begins) pairs.push_back(before << 32 | code);
      before = code;
      begins = false;
    });
  }
  std::ranges::sort(pairs);
  pairs.erase(std::ranges::unique(pairs).begin(), pairs.end());
  for (const uint64_t pair : pairs)
    if (pair >> 32 < 0x80 && is_ascii_letter(static_cast<char>(pair >> 32)))
      joins_letters_.push_back(static_cast<uint32_t>(pair));
  std::ranges::sort(joins_letters_);
  constexpr size_t kBitsForEach = 32;  // so that one pair in 32 without a token shares the bit of another
  const size_t bits = std::bit_ceil(std::max<size_t>(64, kBitsForEach * pairs.size()));
  shift_ = 64 - std::countr_zero(bits);
  joined_.resize(bits / 64);
  for (const uint64_t pair : pairs) {
    const size_t at = place_of(static_cast<uint32_t>(pair >> 32), static_cast<uint32_t>(pair));
    joined_[at / 64] |= uint64_t{1} << (at % 64);
  }
}

bool Borders::after_letters(uint32_t right) const {
  for (uint32_t letter = 'A'; letter <= 'z'; ++letter)
    if (is_ascii_letter(static_cast<char>(letter)) && !symbols_.part(letter, right)) return false;
  return !std::ranges::binary_search(joins_letters_, right);
}

}  // namespace tessera
