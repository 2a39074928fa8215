// How names of special tokens in a text are read.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/base/words.h"

namespace tessera {

// What "<|endoftext|>" in a text is: thirteen characters like others, or the token that ends texts. Where a
// text may come from anyone it must be text: a document could else forge the end of itself.
enum class SpecialTokens : uint8_t { kAsText, kMatched };
constexpr auto words_of(SpecialTokens) {
  return std::array{Word{"text", SpecialTokens::kAsText}, Word{"parse", SpecialTokens::kMatched}};
}

}  // namespace tessera
