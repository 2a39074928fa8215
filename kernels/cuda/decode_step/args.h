// The parameters of the persistent decode kernel.
#pragma once

#include <cuda.h>

#include "kernels/decode_step/instructions.h"

namespace tessera::cuda::decode_step {

// The kernel's parameters: at most 32,764 bytes (CUDA C++ Programming Guide, __global__ parameters)
struct KernelArgs : tessera::decode_step::Args {
  int32_t ring_bytes;  // of shared memory; then as much as x and attention need
  // The keys and values of an attention instruction: [column, token, panel, head, keys or values], of
  // which what lies first in memory is 0
  CUtensorMap caches[tessera::decode_step::kMostAttends];
};
static_assert(sizeof(KernelArgs) <= 32764);

}  // namespace tessera::cuda::decode_step
