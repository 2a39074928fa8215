// What a GPU does while it is traced: every kernel, copy and fill, with the time on the device and the work
// that the host said it belongs to. NVIDIA's CUPTI records it (its activities); the library is loaded at the
// first use. What a CUDA graph launches belongs to no work.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

struct DeviceActivity {
  std::string name;                  // of the kernel, as in the source; "copy, host to device"
  uint64_t work = 0;                 // of begin_work(); 0: of none
  uint32_t stream = 0;               // CUPTI's number
  int64_t begin_ns = 0, end_ns = 0;  // since 1970, as std::chrono::system_clock
  int64_t bytes = 0;                 // of a copy or a fill
};

// Traces from its making on, all streams of this process.
class DeviceTrace {
 public:
  virtual ~DeviceTrace() = default;
  // What this thread enqueues until end_work() belongs to `work`, a number above 0; within it to that of the
  // innermost.
  virtual void begin_work(uint64_t work) = 0;
  virtual void end_work() = 0;
  // Waits for the device; by their beginning. Nothing is traced afterwards.
  virtual std::vector<DeviceActivity> stop() = 0;
};

// One at a time. Error: CUPTI cannot be loaded, or another tool uses it.
std::unique_ptr<DeviceTrace> start_cuda_trace();

}  // namespace tessera
