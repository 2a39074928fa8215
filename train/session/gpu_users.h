// Which processes hold memory of a GPU, as told by NVML, the library of NVIDIA's driver. It is loaded at the
// first use.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera {

struct GpuUse {
  struct Process {
    int64_t pid;
    std::string name;
    int64_t bytes;  // 0: the driver does not say
  };
  int64_t total = 0, used = 0;         // bytes: of the device; held by all processes
  std::vector<Process> others;         // processes that are alive, the largest first
  int64_t ours = 0;                    // bytes of this process
  int64_t of_nobody() const;           // bytes that no living process is known to hold
  std::string text_of_others() const;  // "python3 (pid 4242) holds 61.2 GiB of it"; "": none that matters
};

// A program that has ended returns its memory only after a while: some seconds for tens of GiB. Reads the use
// again and again until all memory in use belongs to a living process, or until the rest has not shrunk for
// some seconds. `pause` waits for kUsePause.
inline constexpr double kUsePause = 0.1;  // seconds
GpuUse settled_use(const std::function<GpuUse()>& read, const std::function<void()>& pause);

// The use of the present GPU, once it has settled. Without NVML no processes are known, and nothing is waited
// for.
GpuUse settled_gpu_use();

}  // namespace tessera
