// The parameters of the chain kernel.
#pragma once

#include <cuda.h>

#include "kernels/chain/stages.h"

namespace tessera::cuda::chain {

// The kernel's parameters: at most 32,764 bytes (CUDA C++ Programming Guide, __global__ parameters)
struct KernelArgs : tessera::chain::Args {
  int32_t ring_bytes;  // of shared memory; then as much as x and attention need
  // Of the keys and values of an attention stage: [column, token, panel, head, keys or values], of which what
  // lies first in memory is 0
  CUtensorMap caches[tessera::chain::kMostAttends];
};
static_assert(sizeof(KernelArgs) <= 32764);

}  // namespace tessera::cuda::chain
