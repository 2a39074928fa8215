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
// Reads /proc/meminfo, and the limits of this process's control group and of those above it (cgroup v2 and
// v1). Pages of files that the group has read count as free. `root`: the folder in which /proc and /sys are
HostMemory host_memory(const std::filesystem::path& root = "/");

// The limits that may have caused a refusal of memory, each with its name, its value and what raises it: a
// container's limit; vm.max_map_count, if few mappings are left; with `pinned` the locked memory of `ulimit
// -l`. The text begins with ". " unless it is empty.
std::string limits_text(bool pinned, const std::filesystem::path& root = "/");

}  // namespace tessera
