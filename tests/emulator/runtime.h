// Streams of the emulated GPU: what is enqueued runs at once, or is kept while the stream is captured.
#pragma once

#include <driver_types.h>

#include <functional>

namespace emulator {

cudaError_t enqueue(cudaStream_t stream, std::function<void()> work);
cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel, std::function<void()> thread);

}  // namespace emulator
