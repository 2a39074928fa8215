// What a GPU does while it is traced: every kernel, copy and fill, with its time on the device and the number
// of the work that the host gave it (begin_work()). NVIDIA's CUPTI records this (its activities); the library
// is loaded at the first use. Kernels that a CUDA graph launches belong to no work.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

struct DeviceActivity {
  std::string name;                  // the kernel's, as in the source; or "copy, host to device"
  uint64_t work = 0;                 // the number given to begin_work(); 0: it belongs to no work
  uint32_t stream = 0;               // CUPTI's number
  int64_t begin_ns = 0, end_ns = 0;  // since 1970, as std::chrono::system_clock
  int64_t bytes = 0;                 // of a copy or a fill
};

// Traces all streams of this process from the moment it is made.
class DeviceTrace {
 public:
  virtual ~DeviceTrace() = default;
  // What this thread enqueues until end_work() belongs to `work`, a number above 0. Works nest: it belongs to
  // the innermost one.
  virtual void begin_work(uint64_t work) = 0;
  virtual void end_work() = 0;
  // Waits for the device, and returns the activities in the order in which they began. Nothing is traced
  // afterwards.
  virtual std::vector<DeviceActivity> stop() = 0;
};

// Only one trace may exist at a time. Error: CUPTI cannot be loaded, or another tool uses it.
std::unique_ptr<DeviceTrace> start_cuda_trace();

}  // namespace tessera
