// Measures the time of work that is enqueued on a stream.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/stream.h"

namespace tessera {

// start() and stop() only mark two places in the stream. On CUDA they record events, so that the host may run
// ahead; on the CPU they read the clock at once.
class Timer {
 public:
  virtual ~Timer() = default;
  virtual void start() = 0;
  virtual void stop() = 0;
  virtual double milliseconds() = 0;  // between the two; waits for the second
};

// The bytes that a benchmark touches between two timed calls. No L2 holds as many, so the second call finds
// nothing of the first one in a cache.
inline constexpr int64_t kColdCacheBytes = int64_t{192} << 20;

std::unique_ptr<Timer> make_timer(const Stream& stream);  // its backend must outlive the timer
std::unique_ptr<Timer> make_cuda_timer(CUstream_st* stream);

}  // namespace tessera
