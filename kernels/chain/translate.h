// The operations of a decode step as the stages of one kernel.
#pragma once

#include <span>

#include "kernels/chain/stages.h"

namespace tessera::chain {

// chain_bytes() of `operations` must not be 0, and `memory` has so many. ring_bytes is left to the launch.
// Error: an x or an add that no operation before it has written.
Args translate(std::span<const ChainedOp> operations, const Tensor& memory, int blocks);

}  // namespace tessera::chain
