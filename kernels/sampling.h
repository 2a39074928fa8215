// SamplingRule: how the next token is drawn from the logits of a model.
#pragma once

#include <cstdint>

namespace tessera {

// These stand in place of a token that was not drawn: kIdleToken for an idle sequence, kBadLogits for a
// sequence that has a NaN logit or whose largest logit is infinite.
inline constexpr int32_t kIdleToken = -1, kBadLogits = -2;

// The filters are applied in this order, which is that of transformers. A token that a filter removes gets
// probability 0; the others keep their proportions. Ties go to the lower id.
struct SamplingRule {
  // Tokens that occur in the text: their positive logits are divided by it, their negative ones multiplied
  // (Keskar et al., arXiv:1909.05858). 1: no effect
  float repetition_penalty = 1;
  float temperature = 1;  // logits are divided by it; 0: always the most probable token
  int32_t top_k = 0;      // only the k most probable; 0: all
  // Only the most probable tokens are kept, as many as together reach the probability top_p (Holtzman et al.,
  // arXiv:1904.09751); 1: all
  float top_p = 1;
  float min_p = 0;  // only tokens of at least this share of the highest probability (arXiv:2407.01082)

  bool operator==(const SamplingRule&) const = default;
};

}  // namespace tessera
