#include "model/config.h"

namespace tessera {

double ModelConfig::attention_span(double T) const { return attention_span(0, static_cast<int64_t>(T)); }

double ModelConfig::attention_span(int64_t begin, int64_t end) const {
  const auto T = static_cast<double>(end - begin);
  double sum = 0;
  for (const auto& [size, blocks] : window.counts(layers)) {
    const auto w = static_cast<double>(size);
    const bool sees_all = size == Windows::kFull || w >= T;
    sum += static_cast<double>(blocks) * (sees_all ? T : 2 * w - 1 - w * (w - 1) / T);
  }
  // A block with a pattern has no window: it has counted as one that sees all.
  for (const auto& [pattern, blocks] : sparse.counts(layers))
    if (!pattern.shows_all(end))
      sum += static_cast<double>(blocks) * (2 * pattern.pairs(begin, end) / T - 1 - T);
  return sum / static_cast<double>(layers);
}

bool ModelConfig::has_dense_blocks() const {
  for (int64_t layer = 0; layer < layers; ++layer)
    if (!experts.in_block(layer)) return true;
  return false;
}

double ModelConfig::flops_of_span(double attention_span) const {
  const int64_t looked_up = tied ? 0 : vocab_size * channels;
  return 6.0 * static_cast<double>(active_parameters() - looked_up) +
         6.0 * static_cast<double>(layers * attention_width()) * attention_span;
}

}  // namespace tessera
