#include "model/freeze.h"

#include <algorithm>

#include "kernels/base/text.h"
#include "model/params.h"

namespace tessera {
namespace {

template <class Visit>
void for_each_frozen(const ModelConfig& config, const Freeze& freeze, Visit&& visit) {
  if (!freeze) return;
  Params none;  // for_each_param() goes by its number of blocks
  none.blocks.resize(static_cast<size_t>(config.layers));
  for_each_param(none, config, [&](const ParamInfo& info, const Tensor&) {
    if (freeze.freezes(info)) visit(info, info.shape.numel() - info.padding * config.channels);
  });
}

}  // namespace

bool Freeze::freezes(const ParamInfo& info) const {
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

int64_t frozen_parameters(const ModelConfig& config, const Freeze& freeze) {
  int64_t count = 0;
  for_each_frozen(config, freeze, [&](const ParamInfo&, int64_t elements) { count += elements; });
  return count;
}

double frozen_flops_per_token(const ModelConfig& config, const Freeze& freeze) {
  double flops = 0;
  for_each_frozen(config, freeze, [&](const ParamInfo& info, int64_t elements) {
    const bool looked_up = info.part == ParamPart::kEmbeddings && (!config.tied || info.name != kTokenTable);
    if (info.decay && !looked_up) flops += 2.0 * static_cast<double>(elements);
  });
  return flops;
}

std::string frozen_text(const ModelConfig& config, const Freeze& freeze) {
  const auto count = [](int64_t value) { return format_count(static_cast<double>(value)); };
  const bool classifier = config.tied && freeze.names(ParamPart::kEmbeddings);
  return fmt::format("{}: {} of {} parameters{}", text_of(freeze), count(frozen_parameters(config, freeze)),
                     count(config.parameters()),
                     classifier ? "; the classifier is the token table, so it is frozen, too" : "");
}

}  // namespace tessera
