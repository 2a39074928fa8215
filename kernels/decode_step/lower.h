// The lowering of a decode step: from its operations to the instructions of one kernel.
#pragma once

#include <span>

#include "kernels/decode_step/instructions.h"

namespace tessera::decode_step {

// Operation i becomes instruction i. decode_step_bytes() of `operations` must not be 0, and `memory` has
// so many bytes. `blocks`: of the grid, at most kMostBlocks.
// Error: the x or add of an operation is not the y of an operation before it.
Args lower(std::span<const DecodeOp> operations, const Tensor& memory, int blocks);

}  // namespace tessera::decode_step
