// CUDA streams that do not wait for the default stream. When kernels of both priorities wait for
// multiprocessors, those of kFirst get them.
#pragma once

#include <algorithm>

#include "kernels/cuda/cuda_check.h"

namespace tessera::cuda {

enum class StreamPriority : uint8_t { kFirst, kBeside };

inline cudaStream_t create_stream(StreamPriority priority) {
  int least = 0, greatest = 0;  // a smaller number is a higher priority
  TESSERA_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;
  TESSERA_CUDA(cudaStreamCreateWithPriority(
      &stream, cudaStreamNonBlocking,
      priority == StreamPriority::kBeside ? least : std::max(least - 1, greatest)));
  return stream;
}

}  // namespace tessera::cuda
