// Finds names of special tokens in a text.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/added_tokens.h"
#include "data/tokenizers/tokenizer.h"

namespace tessera {

class SpecialTokenFinder {
 public:
  // Error: none
  explicit SpecialTokenFinder(const Tokenizer& tokenizer);

  bool is_special(int32_t id) const;
  int64_t count(std::string_view text) const;
  // Cuts `text` into texts and special tokens, as AddedTokenFinder::split() does.
  void split(std::string_view text, const std::function<void(std::string_view)>& on_text,
             const std::function<void(const AddedToken&)>& on_token) const {
    finder_.split(text, SpecialTokens::kMatched, on_text, on_token);
  }

 private:
  std::vector<AddedToken> tokens_;
  AddedTokenFinder finder_;
};

// "<|im_end|> (151645), <|endoftext|> (151643)". Error: an id without a token
std::string list_tokens(const Tokenizer& tokenizer, std::span<const int32_t> ids);

}  // namespace tessera
