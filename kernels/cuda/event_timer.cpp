#include <cuda_runtime.h>

#include "kernels/cuda/cuda_check.h"
#include "kernels/timer.h"

namespace tessera {
namespace {

class EventTimer final : public Timer {
 public:
  explicit EventTimer(CUstream_st* stream) : stream_(stream) {
    TESSERA_CUDA(cudaEventCreate(&start_));
    TESSERA_CUDA(cudaEventCreate(&stop_));
  }
  ~EventTimer() override {
    cudaEventDestroy(start_);
    cudaEventDestroy(stop_);
  }
  EventTimer(const EventTimer&) = delete;
  EventTimer& operator=(const EventTimer&) = delete;

  void start() override { TESSERA_CUDA(cudaEventRecord(start_, stream_)); }
  void stop() override { TESSERA_CUDA(cudaEventRecord(stop_, stream_)); }
  double milliseconds() override {
    float elapsed = 0;
    TESSERA_CUDA(cudaEventSynchronize(stop_));
    TESSERA_CUDA(cudaEventElapsedTime(&elapsed, start_, stop_));
    return elapsed;
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t start_ = nullptr, stop_ = nullptr;
};

}  // namespace

std::unique_ptr<Timer> make_cuda_timer(CUstream_st* stream) { return std::make_unique<EventTimer>(stream); }

}  // namespace tessera
