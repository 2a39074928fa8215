#include "model/freeze.h"

#include <fmt/format.h>

#include <algorithm>

namespace tessera {

bool Freeze::freezes(const ParamInfo& info) const {
  if (all_but_adapters_) return info.adapter == AdapterMatrix::kNone;
  return names(info.part) || std::ranges::any_of(blocks_, [&](const Blocks& b) {
           return b.first <= info.block && info.block <= b.last;
         });
}

int64_t Freeze::last_block() const {
  int64_t last = -1;
  for (const Blocks& blocks : blocks_) last = std::max(last, blocks.last);
  return last;
}

std::string text_of(const Freeze& freeze) {
  std::string text;
  const auto add = [&](const std::string& word) { text += (text.empty() ? "" : "+") + word; };
  for (const ParamPart part : values_with_words<ParamPart>())
    if (freeze.names(part)) add(name_of(part));
  for (const auto& [first, last] : freeze.blocks())
    add(first == last ? fmt::format("{}{}", kBlocksWord, first)
                      : fmt::format("{}{}-{}", kBlocksWord, first, last));
  return text.empty() ? "none" : text;
}

}  // namespace tessera
