// The stream of the collectives, and the events that order it with the backend's stream.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_check.h"

namespace tessera {

class CudaEvent {
 public:
  explicit CudaEvent(unsigned flags) { TESSERA_CUDA(cudaEventCreateWithFlags(&event_, flags)); }
  ~CudaEvent() { cudaEventDestroy(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  void record(cudaStream_t stream) { TESSERA_CUDA(cudaEventRecord(event_, stream)); }
  void hold(cudaStream_t stream) const { TESSERA_CUDA(cudaStreamWaitEvent(stream, event_)); }
  bool is_done() const {
    const cudaError_t status = cudaEventQuery(event_);
    if (status != cudaErrorNotReady) TESSERA_CUDA(status);
    cudaGetLastError();  // "not ready" is an answer; it must not surface at the next launch
    return status == cudaSuccess;
  }
  void synchronize() const { TESSERA_CUDA(cudaEventSynchronize(event_)); }
  double seconds_since(const CudaEvent& start) const {
    float milliseconds = 0;
    TESSERA_CUDA(cudaEventElapsedTime(&milliseconds, start.event_, event_));
    return 1e-3 * milliseconds;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

class CudaStream {
 public:
  CudaStream() { TESSERA_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~CudaStream() { cudaStreamDestroy(stream_); }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace tessera
