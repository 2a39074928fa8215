// Who holds memory of a GPU. By NVML, the library of NVIDIA's driver, which is loaded at the first use.
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
  int64_t total = 0, used = 0;         // bytes of the device; all processes
  std::vector<Process> others;         // that are alive, largest first
  int64_t ours = 0;                    // bytes of this process
  int64_t of_nobody() const;           // bytes that no living process is known to hold
  std::string text_of_others() const;  // "python3 (pid 4242) holds 61.2 GiB of it"; "": none worth a word
};

// A program that has ended returns its memory only after a while, some seconds for tens of GiB. Reads the use
// until no memory is held by nobody, or that has not become less for some seconds. `pause` waits for
// kUsePause.
inline constexpr double kUsePause = 0.1;  // seconds
GpuUse settled_use(const std::function<GpuUse()>& read, const std::function<void()>& pause);

// The use of the present GPU, settled. Without NVML no processes are known, and nothing is waited for.
GpuUse settled_gpu_use();

}  // namespace tessera
