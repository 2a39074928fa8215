// Which interface a host is reached by, from what the hosts have. That it is found, and refused where it
// leads nowhere: tests/train/run/nodes_test.cpp.
#include "train/parallel/network.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/base/check.h"

namespace tessera::testing {
namespace {

constexpr uint32_t ip(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  return a << 24 | b << 16 | c << 8 | d;
}

const Interface kLo{.name = "lo", .address = ip(127, 0, 0, 1), .bits = 8, .loopback = true},
    kDocker{.name = "docker0", .address = ip(172, 17, 0, 1), .bits = 16};

// Two hosts, each with lo, docker0, a management network of its own, and a fabric that both share
std::vector<HostInterfaces> two_hosts(const std::string& named = "") {
  std::vector<HostInterfaces> hosts;
  for (const uint32_t i : {1, 2})
    hosts.push_back({.host = "node" + std::to_string(i),
                     .named = named,
                     .interfaces = {kLo,
                                    kDocker,
                                    {.name = "eth0", .address = ip(10, 0, i, 7), .bits = 24},
                                    {.name = "ib0", .address = ip(10, 9, 0, i), .bits = 16}}});
  return hosts;
}

TEST(Network, TheInterfaceIsOneThatAllShare) {
  for (const size_t own : {0, 1}) {
    EXPECT_EQ(choose_interface(Device::kCpu, two_hosts(), own).name, "ib0");
    EXPECT_EQ(choose_interface(Device::kCpu, two_hosts("eth0"), own).name, "eth0") << "as the user says";
  }
  std::vector<HostInterfaces> routed = two_hosts();  // by a router: the first that is a host's own
  for (HostInterfaces& host : routed) host.interfaces.pop_back();
  EXPECT_EQ(choose_interface(Device::kCpu, routed, 0).name, "eth0");
}

TEST(Network, WrongNamesAreRefusedWithTheVariable) {
  const auto refused = [](Device device, const std::vector<HostInterfaces>& hosts,
                          const std::vector<std::string>& parts) {
    try {
      choose_interface(device, hosts, 0);
      ADD_FAILURE() << "not refused";
    } catch (const Error& error) {
      for (const std::string& part : parts)
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  refused(Device::kCpu, two_hosts("lo"), {"GLOO_SOCKET_IFNAME=lo", "loopback", "ib0 (10.9.0.1/16)"});
  refused(Device::kCuda, two_hosts("eth7"), {"NCCL_SOCKET_IFNAME=eth7", "names no interface of node1"});
  std::vector<HostInterfaces> bare = two_hosts();
  for (HostInterfaces& host : bare) host.interfaces = {kLo, kDocker};
  refused(Device::kCuda, bare,
          {"no network interface of node1", "NCCL_SOCKET_IFNAME", "docker0 (172.17.0.1/16)"});
}

TEST(Network, NamesAreReadAsNcclDoes) {
  const auto named = [](const char* list, const char* name) { return is_named(Device::kCuda, list, name); };
  EXPECT_TRUE(named("eth", "eth1"));
  EXPECT_FALSE(named("=eth", "eth1"));
  EXPECT_TRUE(named("=ib0,eth1", "eth1"));
  EXPECT_FALSE(named("^docker,lo", "docker0"));
  EXPECT_TRUE(named("^docker,lo", "eth0"));
  EXPECT_TRUE(named("^=docker", "docker0"));
  EXPECT_FALSE(is_named(Device::kCpu, "eth", "eth1"));
}

TEST(Network, ThisHostHasALoopback) {
  EXPECT_TRUE(std::ranges::any_of(interfaces_of_this_host(), &Interface::loopback));
}

}  // namespace
}  // namespace tessera::testing
