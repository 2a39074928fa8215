// Text cut at a separator.
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

namespace tessera {

// "a,,b" is "a", "" and "b"; an empty text is one part, which is empty. The parts point into `text`.
inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t first = 0; first <= text.size();) {
    const size_t end = std::min(text.find(separator, first), text.size());
    parts.push_back(text.substr(first, end - first));
    first = end + 1;
  }
  return parts;
}

}  // namespace tessera
