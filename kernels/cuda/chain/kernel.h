// A decode step of one text as one kernel: see kernel.cu.
#pragma once

#include <cuda_runtime.h>

#include "kernels/chain/stages.h"

namespace tessera::cuda::chain {

// Enqueues all stages of `args`. `blocks`: one on each multiprocessor, all of which
// wait for one another; at most kMostBlocks. False, and nothing is enqueued, in a build for older GPUs, and
// on a device with too few multiprocessors or too little shared memory for it.
bool launch(const tessera::chain::Args& args, int blocks, cudaStream_t stream);

}  // namespace tessera::cuda::chain
