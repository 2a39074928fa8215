// What a forward keeps of each block for the backward.
#pragma once

#include <cstdint>

#include "kernels/base/words.h"

namespace tessera {

// What is not kept has one place for all blocks: the backward computes it again, from what is kept, by the
// same operations to the same bits.
enum class Keep : uint8_t {
  kAll,
  kAllButMlp,  // norm 2 and the MLP's hidden layer, more than half of a block's memory, are computed again
  kOutputs,    // residual_out alone: the whole block is computed again, except for its last product
  kNothing,    // a forward without backward: no word asks for it
};
constexpr auto words_of(Keep) {  // of train.recompute: what is computed again
  return std::array{Word{"none", Keep::kAll}, Word{"mlp", Keep::kAllButMlp}, Word{"block", Keep::kOutputs}};
}

}  // namespace tessera
