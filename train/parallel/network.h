// The network interfaces through which the ranks of several machines reach one another.
#pragma once

#include <string>
#include <vector>

#include "kernels/base/tensor.h"
#include "train/parallel/ranks.h"

namespace tessera {

// PyTorch's Gloo also reads the first variable, and NCCL the second.
inline constexpr const char *kGlooInterface = "GLOO_SOCKET_IFNAME", *kNcclInterface = "NCCL_SOCKET_IFNAME";

struct Interface {
  std::string name;
  uint32_t address = 0;  // IPv4, as a number
  int bits = 0;          // of its subnet
  bool loopback = false;
};
// The interfaces of this host that are up and have an IPv4 address
std::vector<Interface> interfaces_of_this_host();

// Whether `name` is one of `named`. For Gloo `named` is one name; for NCCL it is prefixes separated by
// commas, after "=" whole names, after "^" those that are excluded
bool is_named(Device device, const std::string& named, const std::string& name);

struct HostInterfaces {
  std::string host, named;  // named: the variable's value; "": not set
  std::vector<Interface> interfaces;
};
// The interface of hosts[own]: one that `named` selects; otherwise the first that is no loopback and whose
// address no other host has (docker0 has the same address on all hosts), if possible in a subnet that every
// other host has, too. Error: there is none, or `named` is a loopback interface; the message lists what the
// host has, and names the variable.
Interface choose_interface(Device device, const std::vector<HostInterfaces>& hosts, size_t own);

struct Network {
  std::string interface;  // of this host; "": all ranks are on one host
  std::string text;       // "node7 by eth0 (10.0.0.7)", for every host
};
// All ranks call it. The first rank of each host connects to every other host. Otherwise a library would fail
// later without saying why. Error, the same on all ranks: which host cannot reach which, through which
// interface, and which variable to set.
Network find_network(const Ranks& ranks, Device device);

}  // namespace tessera
