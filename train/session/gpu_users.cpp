#include "train/session/gpu_users.h"

#include <dlfcn.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>

#include "kernels/base/arena.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

constexpr int64_t kNotable = int64_t{1} << 30;  // bytes: more than a context of CUDA
constexpr int kMostPauses = 200, kQuietPauses = 50;

// What /proc says of a process: "" where it has ended, or is about to
std::string name_of_living(int64_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  if (!std::getline(file, text)) return "";
  const size_t begin = text.find('('), end = text.rfind(')');
  if (begin == std::string::npos || end == std::string::npos || end + 2 >= text.size()) return "";
  // proc(5): the state follows the name, and the process's flags are the seventh field after it.
  constexpr unsigned kExiting = 4;  // PF_EXITING
  std::istringstream rest(text.substr(end + 2));
  std::string state, skipped;
  unsigned flags = 0;
  rest >> state;
  for (int i = 0; i < 5; ++i) rest >> skipped;
  rest >> flags;
  const bool ended = state == "Z" || state == "X" || (flags & kExiting) != 0;
  return ended ? "" : text.substr(begin + 1, end - begin - 1);
}

// Of nvml.h, which not every CUDA Toolkit has
struct NvmlProcess {
  unsigned pid;
  unsigned long long bytes;  // all bits set: not known
  unsigned gpu_instance, compute_instance;
};

class Nvml {
 public:
  Nvml() {
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) return;
    const auto find = [&]<class Function>(const char* name, Function& function) {
      function = reinterpret_cast<Function>(dlsym(library, name));
    };
    int (*begin)() = nullptr;
    find("nvmlInit_v2", begin);
    find("nvmlDeviceGetHandleByPciBusId_v2", handle_);
    find("nvmlDeviceGetComputeRunningProcesses_v3", processes_);
    works_ = begin && handle_ && processes_ && begin() == 0;
  }

  std::vector<NvmlProcess> processes(const char* bus_id) const {
    std::vector<NvmlProcess> found(256);
    auto count = static_cast<unsigned>(found.size());
    void* device = nullptr;
    if (!works_ || handle_(bus_id, &device) != 0 || processes_(device, &count, found.data()) != 0) return {};
    found.resize(count);
    return found;
  }
  bool works() const { return works_; }

 private:
  bool works_ = false;
  int (*handle_)(const char*, void**) = nullptr;
  int (*processes_)(void*, unsigned*, NvmlProcess*) = nullptr;
};

GpuUse read_use(const Nvml& nvml) {
  const DeviceMemory memory = device_memory(Device::kCuda);
  GpuUse use{.total = memory.total, .used = memory.total - memory.free, .others = {}};
  for (const NvmlProcess& one : nvml.processes(cuda_bus_id().c_str())) {
    const bool known = one.bytes != std::numeric_limits<unsigned long long>::max();
    const int64_t bytes = known ? static_cast<int64_t>(one.bytes) : 0;
    if (one.pid == static_cast<unsigned>(getpid())) {
      use.ours = bytes;
    } else if (const std::string name = name_of_living(one.pid); !name.empty()) {
      use.others.push_back({one.pid, name, bytes});
    }
  }
  std::ranges::sort(use.others, std::greater(), &GpuUse::Process::bytes);
  return use;
}

}  // namespace

int64_t GpuUse::of_nobody() const {
  int64_t bytes = used - ours;
  for (const Process& one : others) {
    if (one.bytes == 0) return 0;  // it may hold all of that
    bytes -= one.bytes;
  }
  return std::max<int64_t>(bytes, 0);
}

std::string GpuUse::text_of_others() const {
  std::vector<std::string> parts;
  for (const Process& one : others)
    if (one.bytes == 0 || one.bytes >= kNotable)
      parts.push_back(fmt::format("{} (pid {}){}", one.name, one.pid,
                                  one.bytes > 0 ? " " + format_bytes(one.bytes) : ""));
  if (of_nobody() >= kNotable)
    parts.push_back(fmt::format("programs that cannot be seen from here {}", format_bytes(of_nobody())));
  if (parts.empty()) return "";
  return fmt::format("other programs hold memory of this GPU: {}", fmt::join(parts, ", "));
}

GpuUse settled_use(const std::function<GpuUse()>& read, const std::function<void()>& pause) {
  GpuUse use = read();
  for (int pauses = 0, quiet = 0; pauses < kMostPauses && quiet < kQuietPauses; ++pauses) {
    if (use.of_nobody() < kNotable) break;
    pause();
    const GpuUse next = read();
    quiet = next.of_nobody() < use.of_nobody() ? 0 : quiet + 1;
    use = next;
  }
  return use;
}

GpuUse settled_gpu_use() {
  const DeviceMemory memory = device_memory(Device::kCuda);
  if (memory.total - memory.free < kNotable)
    return {.total = memory.total, .used = memory.total - memory.free, .others = {}};
  static const Nvml nvml;
  if (!nvml.works()) return read_use(nvml);
  return settled_use([] { return read_use(nvml); },
                     [] { std::this_thread::sleep_for(std::chrono::duration<double>(kUsePause)); });
}

}  // namespace tessera
