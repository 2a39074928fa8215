// Finds added tokens in a text: from left to right, and of those that begin at a place the longest.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/definition.h"
#include "data/tokenizers/tokenizer.h"

namespace tessera {

// `text` without the blanks (Unicode's White_Space) that it begins and ends with
std::string_view without_outer_blanks(std::string_view text);

class AddedTokenFinder {
 public:
  // Keeps those of `tokens`, which live longer, whose `normalized` is as asked. The contents of normalised
  // ones are normalised by `normalize` first.
  AddedTokenFinder(const std::vector<AddedToken>& tokens, bool normalized,
                   const std::function<std::string(std::string_view)>& normalize);

  // Whether split() finds tokens at all.
  bool finds(SpecialTokens special) const {
    return has_others_ || (special == SpecialTokens::kMatched && !by_content_.empty());
  }

  // Cuts `text` into texts and tokens, in their order. No text is empty.
  void split(std::string_view text, SpecialTokens special,
             const std::function<void(std::string_view)>& on_text,
             const std::function<void(const AddedToken&)>& on_token) const;

 private:
  const AddedToken* token_at(std::string_view text, size_t at, size_t& bytes) const;

  std::map<std::string, const AddedToken*, std::less<>> by_content_;
  bool has_others_ = false;                       // that are not special
  std::array<std::vector<size_t>, 256> lengths_;  // of contents by their first byte; descending
};

}  // namespace tessera
