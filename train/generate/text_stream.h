// TextStream: the text of tokens that come one by one, as far as it is certain.
//
// Tokens of a byte-level tokenizer may end within a character, and a stop string may extend over several
// tokens. Bytes that may still become a character or a stop string are held back until more tokens decide.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/tokenizer.h"

namespace tessera {

// The number of bytes, 0 to 3, at the end of `text` that may be the beginning of a UTF-8 character
size_t unfinished_utf8(std::string_view text);

class TextStream {
 public:
  struct Options {
    std::vector<std::string> stops = {};  // none is empty
    bool show_special = false;            // shows special tokens by their names; otherwise they give no text
  };
  TextStream(const Tokenizer& tokenizer, const Options& options);

  // Adds a token. Returns further text, well-formed: bytes that are not UTF-8 become U+FFFD. Error: the id
  // has no token
  std::string add(int32_t token);
  // Returns the rest of the text, after the last token. An incomplete character becomes U+FFFD.
  std::string finish();

  // A stop string was found: the text ends before it, and add() gives nothing more.
  bool stopped() const { return stopped_; }

 private:
  std::string take(bool all);

  const Tokenizer& tokenizer_;
  Options options_;
  std::string bytes_;  // the bytes of an incomplete character
  std::string text_;   // text that may be the beginning of a stop string
  bool stopped_ = false;
};

}  // namespace tessera
