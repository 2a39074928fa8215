#include "model/offload.h"

namespace tessera {

std::string text_of(const Offload& offload) {
  std::string text;
  for (const Offloaded what : values_with_words<Offloaded>())
    if (offload.has(what)) text += (text.empty() ? "" : "+") + std::string(name_of(what));
  return text.empty() ? "none" : text;
}

}  // namespace tessera
