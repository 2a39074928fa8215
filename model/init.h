// Random initial weights, as GPT-2's: normal with standard deviation 0.02, and 0.02 / sqrt(2 L) for the two
// matrices of a block that write to the residual stream; biases 0, norms 1. Radford et al., "Language Models
// are Unsupervised Multitask Learners", 2019, section 2.3. The A of an adapter is uniform within
// 1 / sqrt(inputs), and its B is 0: PEFT's initial values, with which a model with adapters computes what it
// computes without them.
#pragma once

#include "model/params.h"

namespace tessera {

// The values depend on the seed alone, not on the device or the rank.
void init_weights(const ModelConfig& config, uint64_t seed, const ParamSink& sink);

}  // namespace tessera
