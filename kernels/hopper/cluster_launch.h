// Launches a kernel that runs in clusters and uses dynamic shared memory.
#pragma once

#include <cuda_runtime_api.h>

namespace tessera::hopper {

template <class Arguments>
cudaError_t launch_clusters(void (*kernel)(Arguments), int clusters, unsigned ctas, int threads,
                            int shared_bytes, cudaStream_t stream, const Arguments& args) {
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (status != cudaSuccess) return status;
  cudaLaunchAttribute cluster{.id = cudaLaunchAttributeClusterDimension};
  cluster.val.clusterDim = {ctas, 1, 1};
  cudaLaunchConfig_t config{.gridDim = static_cast<unsigned>(clusters) * ctas,
                            .blockDim = static_cast<unsigned>(threads),
                            .dynamicSmemBytes = static_cast<size_t>(shared_bytes),
                            .stream = stream,
                            .attrs = &cluster,
                            .numAttrs = 1};
  return cudaLaunchKernelEx(&config, kernel, args);
}

}  // namespace tessera::hopper
