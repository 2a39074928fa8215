// Launching a kernel, and what the runtime says about it.
#pragma once

#include <cuda_runtime.h>

#include "kernels/attention/attention.h"

namespace tessera::attention {

// Bytes of shared memory a CTA: 48 KB, less 8 for what kernels declare statically.
// More must be asked for, kernel by kernel.
inline constexpr int kSharedWithoutAsking = 40 * 1024;
// What every chip from compute capability 8.0 on has for a CTA that asks.
inline constexpr int kSharedEverywhere = 99 * 1024;

template <class... Params, class... Args>
AttnStatus launch(void (*kernel)(Params...), dim3 grid, int threads, int shared_bytes, CUstream_st* stream,
                  const Args&... args) {
  if (shared_bytes > kSharedWithoutAsking &&
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes) !=
          cudaSuccess) {
    return ATTN_LAUNCH_FAILED;
  }
  kernel<<<grid, threads, shared_bytes, stream>>>(args...);
  return cudaPeekAtLastError() == cudaSuccess ? ATTN_OK : ATTN_LAUNCH_FAILED;
}

}  // namespace tessera::attention
