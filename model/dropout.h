// Where and what a model drops while it trains (kernels/base/dropout.h): the embeddings, what each branch of
// a block adds to the residual stream, and attention's probabilities, as GPT-2 does (Radford et al., 2019).
#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/dropout.h"
#include "model/config.h"

namespace tessera {

// The threshold T for a probability p: T / 256 is the multiple of 1 / 256 that is nearest to p.
// Error: p is not within [0, 1), or it is above 0 and the nearest multiple is 0 or 1.
int dropout_threshold(double probability);

// The places of a model where elements are dropped
enum class DropoutKind : uint8_t { kEmbedding, kAttention, kAttentionBranch, kMlpBranch };
inline constexpr int64_t kMostDropoutLayers = 16384;

// Dropout::place of a kind and a layer. Error: the layer is kMostDropoutLayers or more.
uint32_t place_of(DropoutKind kind, int64_t layer);

// The key of a step's masks. `step` counts from 1.
uint64_t dropout_key(uint64_t seed, int64_t step);

// What a forward and its backward drop. {}: nothing
struct ActiveDropout {
  DropoutConfig probabilities = {};
  uint64_t key = 0;             // dropout_key()
  uint32_t first_sequence = 0;  // the first row of the batch in the step's global batch

  Dropout at(DropoutKind kind, size_t layer = 0) const;
};

// "0.1016 (26/256) on embeddings, residual branches and attention"; "" if nothing is dropped
std::string text_of(const DropoutConfig& config);

}  // namespace tessera
