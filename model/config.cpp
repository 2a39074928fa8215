#include "model/config.h"

namespace tessera {

double ModelConfig::attention_span(double T) const {
  double sum = 0;
  for (const auto& [size, blocks] : window.counts(layers)) {
    const auto w = static_cast<double>(size);
    const bool sees_all = size == Windows::kFull || w >= T;
    sum += static_cast<double>(blocks) * (sees_all ? T : 2 * w - 1 - w * (w - 1) / T);
  }
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
