// What a forward keeps of each block for the backward.
#pragma once

#include <cstdint>

#include "kernels/base/words.h"

namespace tessera {

// Tensors that are not kept share one place over all blocks: the backward recomputes them from the kept
// ones, with the same operations and the same bits.
enum class Keep : uint8_t {
  kAll,
  kAllButMlp,  // norm 2 and the MLP's hidden layer, more than half of a block's memory, are recomputed
  kOutputs,    // only residual_out: the whole block is recomputed, except for its last product
  kNothing,    // a forward without backward; not a setting
};
constexpr auto words_of(Keep) {  // of train.recompute
  return std::array{Word{"none", Keep::kAll}, Word{"mlp", Keep::kAllButMlp}, Word{"block", Keep::kOutputs}};
}

}  // namespace tessera
