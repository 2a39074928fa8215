// Text to token ids and back.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/special_tokens.h"

namespace tessera {

struct AddedToken;

// Where a text that is encoded stands. Some tokenizers put a blank before a text, as Llama 2's and Mistral's
// do: before one that starts, or also before one that follows an added token, never before one that goes on.
enum class TextPlace : uint8_t { kStart, kAfterToken, kWithin };

// The vocabulary has no token for a byte or a character of a text.
class ByteWithoutToken : public Error {
 public:
  ByteWithoutToken(const std::string& message, int64_t line_of_text) : Error(message), line(line_of_text) {}
  int64_t line;  // of the text, from 1
};

// Immutable: one Tokenizer may be used by several threads.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // "bytes", or "bpe-" and 32 hexadecimal digits, a checksum of all that decides between texts and ids:
  // two files with the same tokenizer give it the same name.
  virtual std::string_view name() const = 0;
  virtual int32_t vocab_size() const = 0;   // ids are below it; not each need have a token
  virtual int32_t end_of_text() const = 0;  // the id that follows every document
  // What the tokenizer's template puts around a text, as Llama 3's <|begin_of_text|>.
  virtual std::span<const int32_t> before_text() const = 0;
  virtual std::span<const int32_t> after_text() const = 0;

  // Appends the ids of `text`, without those of the template. Bytes that are not UTF-8 are encoded, too.
  // Error: ByteWithoutToken.
  virtual void encode(std::string_view text, SpecialTokens special, std::vector<int32_t>& ids,
                      TextPlace place = TextPlace::kStart) const = 0;
  // The same, but leaves out the bytes without a token, as Hugging Face's library does. Returns their number.
  virtual int64_t encode_known(std::string_view text, SpecialTokens special, std::vector<int32_t>& ids,
                               TextPlace place = TextPlace::kStart) const = 0;
  std::vector<int32_t> encode(std::string_view text, SpecialTokens special = SpecialTokens::kAsText,
                              TextPlace place = TextPlace::kStart) const;
  // The text of all these tokens, without a blank that the tokenizer puts before texts; special tokens are
  // their names if `show_special`, else nothing. Error: an id without a token.
  virtual std::string decode(std::span<const int32_t> ids, bool show_special = false) const = 0;
  // The bytes of a token that stands within a text, where its blank is text. Error: as decode()
  virtual std::string token_text(int32_t id, bool show_special = false) const = 0;

  // The last place in `text` before which it may be cut: what comes before is encoded to the same ids
  // whatever follows, and so is the rest, if it is encoded as kWithin. 0: none is known.
  virtual size_t last_cut(std::string_view text) const = 0;

  // The tokenizer.json that makes this tokenizer; "" for bytes.
  virtual const std::string& json() const = 0;
  // Names and values for people: "merges", "50000".
  virtual std::vector<std::array<std::string, 2>> facts() const = 0;
  virtual std::span<const AddedToken> added_tokens() const = 0;  // by ascending id
  // The id of the special token with this content; -1: there is none.
  virtual int32_t special_token(std::string_view content) const = 0;
};

// `bytes`: ids 0..255 are the bytes, 256 is the end of text. A plain text file is therefore a token file.
inline constexpr std::string_view kBytesTokenizer = "bytes";

}  // namespace tessera
