#include "model/keep.h"

#include "kernels/base/text.h"

namespace tessera {

std::string text_of(Keep keep) {
  std::string text;
  for (const Recomputed part : values_with_words<Recomputed>())
    if (keep.recomputes(part)) text += fmt::format("{}{}", text.empty() ? "" : "+", name_of(part));
  return text.empty() ? "none" : text;
}

}  // namespace tessera
