// Launching kernels that may begin before the one before them has ended.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_check.h"

namespace tessera::cuda {

struct LaunchShape {
  int64_t blocks, rows = 1;  // of the grid
  int threads;
  int64_t shared_bytes = 0;
  // The kernel calls wait_for_previous_kernel() (kernels/base/ptx.cuh) and may start before the
  // one before it has ended. Of compute capability 9.0 and later alone.
  bool overlap = false;
};

template <class... Params, class... Args>
void launch(void (*kernel)(Params...), const LaunchShape& shape, cudaStream_t stream, const Args&... args) {
  if (shape.shared_bytes > 0)
    TESSERA_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(shape.shared_bytes)));
  // A multiprocessor whose shared memory is split in another way would first have to become empty.
  if (shape.overlap)
    TESSERA_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                      cudaSharedmemCarveoutMaxShared));
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks), static_cast<unsigned>(shape.rows));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = shape.overlap ? 1 : 0;
  TESSERA_CUDA(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...));
}

}  // namespace tessera::cuda
