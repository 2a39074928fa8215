#include "kernels/base/host_limits.h"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>

#include "kernels/base/check.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr double kFewMappings = 0.9;  // of vm.max_map_count: beyond it few are left

// The number that a file begins with; nothing where there is none, as in "max"
std::optional<int64_t> number_in(const fs::path& path) {
  std::ifstream file(path);
  int64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

// The number behind a key at the beginning of a line
int64_t value_of(const fs::path& path, const std::string& key) {
  std::ifstream file(path);
  std::string name;
  for (int64_t value = 0; file >> name >> value;)
    if (name == key) return value;
  return 0;
}

// The files of a version of control groups
struct GroupFiles {
  const char *folder, *limit, *used, *cached;
};
constexpr GroupFiles kVersion2{"sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"},
    kVersion1{"sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
              "total_inactive_file"};

// In a container the path may begin outside of it: then only the folder itself is there.
void limit_by_groups(const fs::path& root, const GroupFiles& files, const std::string& group,
                     HostMemory& memory) {
  const fs::path top = root / files.folder;
  fs::path at = top / fs::path(group).relative_path();
  for (;; at = at.parent_path()) {
    const std::optional<int64_t> limit = number_in(at / files.limit);
    if (limit && *limit < memory.total) memory.total = *limit, memory.limited_by = at / files.limit;
    if (limit) {
      const int64_t used =
          number_in(at / files.used).value_or(0) - value_of(at / "memory.stat", files.cached);
      memory.free = std::clamp<int64_t>(*limit - used, 0, memory.free);
    }
    if (at == top || !at.has_relative_path() || at.string().size() <= top.string().size()) return;
  }
}

int64_t mappings(const fs::path& root) {
  std::ifstream maps(root / "proc/self/maps");
  return std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
}

}  // namespace

HostMemory host_memory(const fs::path& root) {
  const fs::path info = root / "proc/meminfo";
  HostMemory memory;
  std::ifstream lines(info);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string key;
    int64_t kib = 0;
    words >> key >> kib;
    if (key == "MemTotal:") memory.total = kib << 10;
    if (key == "MemAvailable:") memory.free = kib << 10;
  }
  std::ifstream groups(root / "proc/self/cgroup");  // "0::/user.slice", "4:memory:/docker/..."
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string kinds = "," + line.substr(first + 1, second - first - 1) + ",",
                      group = line.substr(second + 1);
    if (kinds == ",,") limit_by_groups(root, kVersion2, group, memory);
    if (kinds.find(",memory,") != std::string::npos) limit_by_groups(root, kVersion1, group, memory);
  }
  return memory;
}

std::string limits_text(bool pinned, const fs::path& root) {
  std::string text;
  const HostMemory memory = host_memory(root);
  if (!memory.limited_by.empty())
    text += fmt::format(
        ". {} limits this container, or control group, to {}: give it more, such as by docker run --memory "
        "or "
        "by limits.memory of a pod",
        memory.limited_by, format_bytes(memory.total));
  const int64_t most = number_in(root / "proc/sys/vm/max_map_count").value_or(0), has = mappings(root);
  if (most > 0 && static_cast<double>(has) > kFewMappings * static_cast<double>(most))
    text += fmt::format(
        ". This process has {} mappings, and vm.max_map_count is {}: raise it with sysctl "
        "vm.max_map_count={}",
        has, most, 4 * most);
  rlimit locked{};
  if (pinned && getrlimit(RLIMIT_MEMLOCK, &locked) == 0 && locked.rlim_cur != RLIM_INFINITY)
    text += fmt::format(
        ". Locked memory (ulimit -l) is limited to {}: raise it with ulimit -l unlimited, or docker run "
        "--ulimit "
        "memlock=-1",
        format_bytes(static_cast<int64_t>(locked.rlim_cur)));
  return text;
}

}  // namespace tessera
