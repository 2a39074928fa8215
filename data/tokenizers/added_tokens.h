// Finds added tokens in a text: from left to right, and of those that begin at a place the longest.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/definition.h"
#include "data/tokenizers/tokenizer.h"

namespace tessera {

class AddedTokenFinder {
 public:
  // Keeps those of `tokens`, which live longer, whose `normalized` is as asked. The contents of normalised
  // ones are normalised by `normalize` first.
  AddedTokenFinder(const std::vector<AddedToken>& tokens, bool normalized,
                   const std::function<std::string(std::string_view)>& normalize);

  // Whether split() finds tokens at all.
  bool finds(SpecialTokens special) const {
    return has_others_ || (special == SpecialTokens::kMatched && !nodes_.empty());
  }

  // Cuts `text` into texts and tokens, in their order. No text is empty.
  void split(std::string_view text, SpecialTokens special,
             const std::function<void(std::string_view)>& on_text,
             const std::function<void(const AddedToken&)>& on_token) const;

 private:
  // The contents as a tree: a node stands for the bytes on the way to it.
  static constexpr int32_t kNone = -1;
  struct Node {
    unsigned char byte;                 // the last one
    int32_t child = kNone;              // the first node with one more byte
    int32_t sibling = kNone;            // the next one with another last byte
    const AddedToken* token = nullptr;  // whose content ends here
  };

  void add(std::string_view content, const AddedToken& token);
  const AddedToken* token_at(std::string_view text, size_t at, size_t& bytes) const;

  std::vector<Node> nodes_;
  std::array<int32_t, 256> first_;  // the node of a single byte; kNone: no content begins so
  bool has_others_ = false;         // that are not special
};

}  // namespace tessera
