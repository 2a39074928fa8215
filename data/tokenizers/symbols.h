// The tokens of a piece before any merge: those of its bytes, or of its characters.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "data/tokenizers/definition.h"
#include "kernels/base/check.h"
#include "kernels/base/text.h"

namespace tessera {

// A byte or a character without a token
class NoToken : public Error {
 public:
  NoToken(std::string_view piece, size_t at, size_t bytes);
  const char* place;  // of its first byte, in the memory of the piece
};

class Symbols {
 public:
  explicit Symbols(const TokenizerDefinition& definition);

  // Calls `on_token` for each token, as Hugging Face's library does. What has none is left out, so that its
  // neighbours become neighbours, and its bytes are added to `left_out`; if that is null, it is an Error:
  // NoToken.
  template <class OnToken>
  void for_each(std::string_view piece, int64_t* left_out, const OnToken& on_token) const {
    if (byte_level_) return for_each_byte(piece, left_out, on_token);
    for_each_character(piece, left_out, on_token);
  }

  // Whether two texts of characters that are encoded one by one, the first of which ends with `left` and the
  // other begins with `right`, give the tokens of both together: no unknown token is left pending between
  // them, and `right` is not left out.
  bool part(uint32_t left, uint32_t right) const {
    return has_bytes_ || (token_of(left) >= 0 && (unknown_ >= 0 || token_of(right) >= 0));
  }
  int32_t bytes_without_token() const;  // of 256; of characters: 0 if each of them becomes some token

 private:
  int32_t token_of(uint32_t character) const {
    return character < character_tokens_.size() ? character_tokens_[character] : -1;
  }
  int32_t token_of_byte(char byte) const { return byte_tokens_[static_cast<unsigned char>(byte)]; }
  static void leave_out(std::string_view piece, size_t at, size_t bytes, int64_t* left_out) {
    if (left_out == nullptr) throw NoToken(piece, at, bytes);
    *left_out += static_cast<int64_t>(bytes);
  }

  template <class OnToken>
  void for_each_byte(std::string_view piece, int64_t* left_out, const OnToken& on_token) const {
    for (size_t at = 0; at < piece.size(); ++at) {
      const int32_t id = token_of_byte(piece[at]);
      if (id >= 0)
        on_token(id);
      else
        leave_out(piece, at, 1, left_out);
    }
  }

  template <class OnToken>
  void for_each_character(std::string_view piece, int64_t* left_out, const OnToken& on_token) const {
    bool pending = false;  // an unknown token, which the next unknown character may join
    for (size_t at = 0, bytes = 1; at < piece.size(); at += bytes) {
      const auto character = first_code_point(piece.substr(at));
      bytes = character ? character->bytes : 1;
      const int32_t id = character ? token_of(character->code) : -1;
      if (id >= 0) {
        if (pending) on_token(unknown_);
        pending = false;
        on_token(id);
      } else if (has_bytes_of(piece.substr(at, bytes))) {
        // A pending unknown token stays pending, and so comes after the bytes, as in the library.
        for (const char byte : piece.substr(at, bytes)) on_token(token_of_byte(byte));
      } else if (unknown_ < 0) {
        leave_out(piece, at, bytes, left_out);
      } else {
        if (pending && !fuse_unknown_) on_token(unknown_);
        pending = true;
      }
    }
    if (pending) on_token(unknown_);
  }
  bool has_bytes_of(std::string_view character) const {
    for (const char byte : character)
      if (token_of_byte(byte) < 0) return false;
    return true;
  }

  bool byte_level_, fuse_unknown_, has_bytes_ = false;
  int32_t unknown_;
  std::array<int32_t, 256> byte_tokens_;   // -1: none
  std::vector<int32_t> character_tokens_;  // by code point; -1: none
};

// Where a piece of characters can be cut and encoded part by part: between two characters that are neighbours
// in no token that a merge makes, since then no merge spans them.
class Borders {
 public:
  // Knows no border of a byte-level tokenizer, of one that takes whole pieces as tokens, and of one that
  // merges tokens of bytes or unknown ones. `symbols` lives as long.
  Borders(const TokenizerDefinition& definition, const Symbols& symbols);

  bool known() const { return !joined_.empty(); }
  bool between(uint32_t left, uint32_t right) const {
    const size_t at = place_of(left, right);
    return (joined_[at / 64] >> (at % 64) & 1) == 0 && symbols_.part(left, right);
  }

  // Whether there is one between each letter of ASCII and `right`. Only if they are known().
  bool after_letters(uint32_t right) const;

  // Calls `on_part` for each part of `piece` between two borders. Only if they are known().
  template <class OnPart>
  void cut(std::string_view piece, const OnPart& on_part) const {
    constexpr uint32_t kNone = 0xFFFFFFFF;  // no character
    uint32_t before = kNone;
    size_t begin = 0;
    for (size_t at = 0; at < piece.size();) {
      CodePoint next{.code = static_cast<unsigned char>(piece[at]), .bytes = 1};
      if (next.code >= 0x80) next = first_code_point(piece.substr(at)).value_or(CodePoint{kNone, 1});
      if (before != kNone && next.code != kNone && between(before, next.code)) {
        on_part(piece.substr(begin, at - begin));
        begin = at;
      }
      before = next.code;
      at += next.bytes;
    }
    if (begin < piece.size()) on_part(piece.substr(begin));
  }

 private:
  size_t place_of(uint32_t left, uint32_t right) const {
    return static_cast<size_t>((left * uint64_t{0x9E3779B97F4A7C15} ^ right) * 0xD6E8FEB86659FD93 >> shift_);
  }

  const Symbols& symbols_;
  // A bit for each pair, at the place of its hash: pairs may share one, which only hides a border.
  std::vector<uint64_t> joined_;
  int shift_ = 0;
  std::vector<uint32_t> joins_letters_;  // characters that follow a letter of ASCII in a token, ascending
};

}  // namespace tessera
