// SamplingRule: how the next token is drawn from the logits of a model.
#pragma once

#include <cstdint>

namespace tessera {

// Stand in for a token where none was drawn: for an idle sequence, and for one with a logit that is NaN,
// or whose largest logit is infinite.
inline constexpr int32_t kIdleToken = -1, kBadLogits = -2;

// Applied in this order, which is that of transformers. A token that a filter removes has probability 0; the
// others keep their proportions. Ties go to the lower id.
struct SamplingRule {
  // Positive logits of tokens that occur in the text are divided by it, negative ones multiplied
  // (Keskar et al., arXiv:1909.05858). 1: none
  float repetition_penalty = 1;
  float temperature = 1;  // logits are divided by it; 0: always the most probable token
  int32_t top_k = 0;      // only the k most probable; 0: all
  // Only the most probable tokens whose probabilities reach top_p together (Holtzman et al.,
  // arXiv:1904.09751); 1: all
  float top_p = 1;
  float min_p = 0;  // only tokens of at least this share of the highest probability (arXiv:2407.01082)

  bool operator==(const SamplingRule&) const = default;
};

}  // namespace tessera
