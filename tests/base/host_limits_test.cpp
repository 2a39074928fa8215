// The memory of a host and the limits of its containers, read below a folder that stands for the root.
#include "kernels/base/host_limits.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "kernels/base/arena.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kGiB = int64_t{1} << 30;

struct HostLimits : ::testing::Test {
  const fs::path root = fs::temp_directory_path() / ("tessera_host_" + std::to_string(getpid()));

  void SetUp() override {
    write("proc/meminfo", "MemTotal:       67108864 kB\nMemFree: 1 kB\nMemAvailable:   33554432 kB\n");
  }
  void TearDown() override { fs::remove_all(root); }
  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text;
  }
  void expect(int64_t free, int64_t total, const std::string& limited_by) const {
    const HostMemory found = host_memory(root);
    EXPECT_EQ(found.free, free);
    EXPECT_EQ(found.total, total);
    EXPECT_EQ(found.limited_by, limited_by.empty() ? "" : (root / limited_by).string());
  }
};

TEST_F(HostLimits, WithoutAGroupAreThoseOfTheHost) {
  expect(32 * kGiB, 64 * kGiB, "");
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "max\n");
  expect(32 * kGiB, 64 * kGiB, "");
}

// Pages of files that were read can be dropped: they count as free.
TEST_F(HostLimits, OfAContainerCount) {
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", std::to_string(8 * kGiB));
  write("sys/fs/cgroup/memory.current", std::to_string(7 * kGiB));
  write("sys/fs/cgroup/memory.stat",
        "anon 5\ninactive_file " + std::to_string(2 * kGiB) + "\nactive_file 7\n");
  expect(3 * kGiB, 8 * kGiB, "sys/fs/cgroup/memory.max");
  EXPECT_NE(limits_text(false, root).find("memory.max limits"), std::string::npos)
      << limits_text(false, root);
  EXPECT_NE(limits_text(false, root).find("8.0 GiB"), std::string::npos);
  write("sys/fs/cgroup/memory.current", std::to_string(20 * kGiB));
  expect(0, 8 * kGiB, "sys/fs/cgroup/memory.max");
  write("sys/fs/cgroup/memory.current", "0");  // more than the host has left
  write("sys/fs/cgroup/memory.max", std::to_string(60 * kGiB));
  expect(32 * kGiB, 60 * kGiB, "sys/fs/cgroup/memory.max");
  write("sys/fs/cgroup/memory.max", std::to_string(70 * kGiB));
  expect(32 * kGiB, 64 * kGiB, "");
}

TEST_F(HostLimits, OfAGroupAboveCountToo) {
  write("proc/self/cgroup", "0::/a/b\n");
  write("sys/fs/cgroup/a/b/memory.max", "max");
  write("sys/fs/cgroup/a/memory.max", std::to_string(4 * kGiB));
  write("sys/fs/cgroup/a/memory.current", std::to_string(kGiB));
  expect(3 * kGiB, 4 * kGiB, "sys/fs/cgroup/a/memory.max");
  write("proc/self/cgroup", "0::/../../outside\n");  // as a container without a namespace of groups sees it
  write("sys/fs/cgroup/memory.max", std::to_string(2 * kGiB));
  expect(2 * kGiB, 2 * kGiB, "sys/fs/cgroup/memory.max");
}

TEST_F(HostLimits, OfTheFirstVersionOfGroups) {
  write("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/7\n");
  write("sys/fs/cgroup/memory/docker/7/memory.limit_in_bytes", std::to_string(4 * kGiB));
  write("sys/fs/cgroup/memory/docker/7/memory.usage_in_bytes", std::to_string(2 * kGiB));
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  expect(2 * kGiB, 4 * kGiB, "sys/fs/cgroup/memory/docker/7/memory.limit_in_bytes");
}

TEST_F(HostLimits, OfMappingsAreNamedWhenFewAreLeft) {
  write("proc/sys/vm/max_map_count", "20\n");
  write("proc/self/maps", std::string(18, '\n'));
  EXPECT_EQ(limits_text(false, root), "");
  write("proc/self/maps", std::string(19, '\n'));
  const std::string text = limits_text(false, root);
  for (const char* part : {"19 mappings", "vm.max_map_count is 20", "sysctl"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST_F(HostLimits, AreWhatTheArenaAsks) {
  const HostMemory host = host_memory();
  EXPECT_GT(host.free, 0);
  EXPECT_LE(host.free, host.total);
  EXPECT_EQ(device_memory(Device::kCpu).total, host.total);
}

}  // namespace
}  // namespace tessera
