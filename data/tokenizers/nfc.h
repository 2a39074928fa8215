// Unicode's normal form C (Unicode Standard Annex 15), in which "e" and a combining acute are one "é".
#pragma once

#include <string>
#include <string_view>

namespace tessera {

// Whether a quick look shows that `text`, which is well-formed UTF-8, is in form C. "No" may be wrong.
bool looks_composed(std::string_view text);

// `text`, which is well-formed UTF-8, in form C. Time: linear, but for sorting the marks of one letter.
std::string compose(std::string_view text);

}  // namespace tessera
