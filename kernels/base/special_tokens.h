// How names of special tokens in a text are read.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/base/words.h"

namespace tessera {

// What "<|endoftext|>" in a text becomes: thirteen characters, or the token that ends texts. If anyone may
// have written the text, it must become characters: else a document could forge its own end.
enum class SpecialTokens : uint8_t { kAsText, kMatched };
constexpr auto words_of(SpecialTokens) {
  return std::array{Word{"text", SpecialTokens::kAsText}, Word{"parse", SpecialTokens::kMatched}};
}

}  // namespace tessera
