// A decode step of one text as one kernel: see kernel.cu.
#pragma once

#include <cuda_runtime.h>

#include "kernels/decode_step/instructions.h"

namespace tessera::cuda::decode_step {

// Enqueues all instructions of `args`. `blocks`: one on each multiprocessor, all of which
// wait for one another; at most kMostBlocks. False, and nothing is enqueued, in a build for older GPUs, and
// on a device with too few multiprocessors or too little shared memory for it.
bool launch(const tessera::decode_step::Args& args, int blocks, cudaStream_t stream);

}  // namespace tessera::cuda::decode_step
