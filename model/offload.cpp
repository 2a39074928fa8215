#include "model/offload.h"

#include <fmt/format.h>

#include "kernels/base/word_set.h"

namespace tessera {

std::string text_of(const Offload& offload) {
  std::string text = words_with_plus<Offloaded>([&](Offloaded what) { return offload.has(what); });
  const std::string_view counted = name_of(Offloaded::kActivations);
  if (offload.activations && offload.blocks != Offload::kAllBlocks)
    text.insert(text.find(counted) + counted.size(), fmt::format("*{}", offload.blocks));
  return text;
}

}  // namespace tessera
