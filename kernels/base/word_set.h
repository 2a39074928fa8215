// Sets of the values of an enum that has words, as keys write them.
#pragma once

#include <string>

#include "kernels/base/words.h"

namespace tessera {

// "none", or the words of the values for which has() is true, with a plus between them: "norms+mlp"
template <class E, class Has>
std::string words_with_plus(const Has& has) {
  std::string text;
  for (const E value : values_with_words<E>())
    if (has(value)) text += (text.empty() ? "" : "+") + std::string(name_of(value));
  return text.empty() ? "none" : text;
}

}  // namespace tessera
