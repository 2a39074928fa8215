// Unicode's normal forms C, in which "e" and a combining acute are one "é", and KC, in which "ﬁ" is "fi" as
// well (Unicode Standard Annex 15).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/base/words.h"

namespace tessera {

enum class NormalForm : uint8_t { kNone, kNfc, kNfkc };
constexpr auto words_of(NormalForm) {
  return std::array{Word{"none", NormalForm::kNone}, Word{"NFC", NormalForm::kNfc},
                    Word{"NFKC", NormalForm::kNfkc}};
}

// Whether a quick look shows that `text`, which is well-formed UTF-8, is in the form. "No" may be wrong.
bool looks_composed(std::string_view text, NormalForm form = NormalForm::kNfc);

// `text`, which is well-formed UTF-8, in the form. Time: linear, but for sorting the marks of one letter.
std::string compose(std::string_view text, NormalForm form = NormalForm::kNfc);

}  // namespace tessera
