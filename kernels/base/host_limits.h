// What limits the memory of this process on its host: the host itself, a container, and the system's
// settings.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace tessera {

struct HostMemory {
  int64_t free = 0;             // bytes that this process can still obtain
  int64_t total = 0;            // of the host, or of the control group that limits it
  std::string limited_by = "";  // the file of that limit, as /sys/fs/cgroup/memory.max; "": the host's memory
};
// By /proc/meminfo, and the limits of this process's control group and those above it (cgroup v2 and v1),
// where pages of files that it has read count as free. `root`: where /proc and /sys are
HostMemory host_memory(const std::filesystem::path& root = "/");

// The limits that may be behind a refusal of memory, each by its name, its value and what raises it: that of
// a container; vm.max_map_count, if few mappings are left; with `pinned` the locked memory of `ulimit -l`.
// Begins with ". " unless it is empty.
std::string limits_text(bool pinned, const std::filesystem::path& root = "/");

}  // namespace tessera
