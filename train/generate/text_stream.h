// TextStream: the text of tokens that come one by one, as far as it is certain.
//
// Tokens of a byte-level tokenizer may end within a character, and a stop string may be spread over several:
// what may still become a character or a stop string is held back until more tokens decide.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/tokenizer.h"

namespace tessera {

// The number of bytes at the end of `text` that may be the beginning of a character of UTF-8: 0 to 3
size_t unfinished_utf8(std::string_view text);

class TextStream {
 public:
  struct Options {
    std::vector<std::string> stops = {};  // none is empty
    bool show_special = false;            // special tokens by their names; else they are no text
  };
  TextStream(const Tokenizer& tokenizer, const Options& options);

  // Returns further text, well-formed: bytes that are no UTF-8 become U+FFFD. Error: an id without a token
  std::string add(int32_t token);
  // The rest of the text, when no token follows. A character that is not complete becomes U+FFFD.
  std::string finish();

  // A stop string was found: the text ends before it, and add() gives nothing more.
  bool stopped() const { return stopped_; }

 private:
  std::string take(bool all);

  const Tokenizer& tokenizer_;
  Options options_;
  std::string bytes_;  // of a character that is not complete
  std::string text_;   // that may be the beginning of a stop string
  bool stopped_ = false;
};

}  // namespace tessera
