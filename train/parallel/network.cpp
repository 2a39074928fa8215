#include "train/parallel/network.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <map>
#include <optional>
#include <sstream>

#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "kernels/base/descriptor.h"
#include "kernels/base/system_error.h"

namespace tessera {
namespace {

constexpr double kConnectSeconds = 5;

const char* variable_of(Device device) { return device == Device::kCuda ? kNcclInterface : kGlooInterface; }

std::string this_host() {
  char name[HOST_NAME_MAX + 1] = {};
  check_system(gethostname(name, sizeof name - 1) == 0, "cannot read the name of this host: {}");
  return name;
}

std::string text_of(uint32_t address) {
  return fmt::format("{}.{}.{}.{}", address >> 24, address >> 16 & 255, address >> 8 & 255, address & 255);
}

std::string list_of(const std::vector<Interface>& interfaces) {
  std::string text;
  for (const Interface& one : interfaces)
    text += fmt::format("{}{} ({}/{})", text.empty() ? "" : ", ", one.name, text_of(one.address), one.bits);
  return text.empty() ? "none" : text;
}

bool same_subnet(const Interface& a, const Interface& b) {
  const int bits = std::min(a.bits, b.bits);
  return bits > 0 && (a.address ^ b.address) >> (32 - bits) == 0;
}

std::string encode(const HostInterfaces& host) {
  std::string text = host.host + "\n" + host.named + "\n";
  for (const Interface& one : host.interfaces)
    text += fmt::format("{} {} {} {}\n", one.name, one.address, one.bits, int(one.loopback));
  return text;
}

HostInterfaces decode(const std::string& text) {
  HostInterfaces host;
  std::istringstream lines(text);
  std::getline(lines, host.host);
  std::getline(lines, host.named);
  for (Interface one; lines >> one.name >> one.address >> one.bits >> one.loopback;)
    host.interfaces.push_back(one);
  return host;
}

sockaddr_in socket_address(uint32_t address, int port) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(address);
  to.sin_port = htons(static_cast<uint16_t>(port));
  return to;
}

Descriptor new_socket() {
  Descriptor made(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const SystemCall opened = made.is_open();
  check_system(opened, "cannot open a socket: {}");
  return made;
}

// Others connect to it without an accept(): the system does it for them.
struct Listener {
  Descriptor socket = new_socket();
  int port = 0;

  explicit Listener(uint32_t address) {
    sockaddr_in at = socket_address(address, 0);
    socklen_t size = sizeof at;
    check_system(bind(socket.get(), reinterpret_cast<sockaddr*>(&at), size) == 0 &&
                     listen(socket.get(), SOMAXCONN) == 0 &&
                     getsockname(socket.get(), reinterpret_cast<sockaddr*>(&at), &size) == 0,
                 "cannot listen at {}: {}", text_of(address));
    port = ntohs(at.sin_port);
  }
};

// Why there is no connection; "": there is one
std::string why_unreachable(const Interface& from, uint32_t address, int port) {
  const Descriptor socket = new_socket();
  const sockaddr_in source = socket_address(from.address, 0), to = socket_address(address, port);
  if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&source), sizeof source) != 0)
    return system_reason(errno);
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0) return "";
  if (errno != EINPROGRESS) return system_reason(errno);
  pollfd waits{.fd = socket.get(), .events = POLLOUT, .revents = 0};
  if (poll(&waits, 1, static_cast<int>(1000 * kConnectSeconds)) == 0)
    return fmt::format("no answer in {:g} s", kConnectSeconds);
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) return system_reason(errno);
  return error == 0 ? "" : system_reason(error);
}

}  // namespace

std::vector<Interface> interfaces_of_this_host() {
  ifaddrs* first = nullptr;
  check_system(getifaddrs(&first) == 0, "cannot list the network interfaces: {}");
  std::vector<Interface> found;
  for (const ifaddrs* at = first; at != nullptr; at = at->ifa_next) {
    if ((at->ifa_flags & IFF_UP) == 0 || (at->ifa_flags & IFF_RUNNING) == 0 || at->ifa_addr == nullptr ||
        at->ifa_addr->sa_family != AF_INET)
      continue;
    const auto number = [](const sockaddr* address) {
      return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr);
    };
    found.push_back({.name = at->ifa_name,
                     .address = number(at->ifa_addr),
                     .bits = at->ifa_netmask ? std::popcount(number(at->ifa_netmask)) : 32,
                     .loopback = (at->ifa_flags & IFF_LOOPBACK) != 0});
  }
  freeifaddrs(first);
  return found;
}

bool is_named(Device device, const std::string& named, const std::string& name) {
  if (device != Device::kCuda) return name == named;
  std::string_view list = named;
  const bool without = list.starts_with('^');
  if (without) list.remove_prefix(1);
  const bool whole = list.starts_with('=');
  if (whole) list.remove_prefix(1);
  bool found = false;
  while (!list.empty() && !found) {
    const std::string_view one = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), one.size() + 1));
    found = whole ? name == one : name.starts_with(one);
  }
  return found != without;
}

Interface choose_interface(Device device, const std::vector<HostInterfaces>& hosts, size_t own) {
  const HostInterfaces& host = hosts[own];
  const char* variable = variable_of(device);
  const auto is_unique = [&](const Interface& one) {
    return std::ranges::none_of(hosts, [&](const HostInterfaces& other) {
      return other.host != host.host && std::ranges::any_of(other.interfaces, [&](const Interface& theirs) {
               return theirs.address == one.address;
             });
    });
  };
  std::vector<Interface> candidates;
  for (const Interface& one : host.interfaces)
    if (host.named.empty() ? !one.loopback && is_unique(one) : is_named(device, host.named, one.name))
      candidates.push_back(one);
  if (host.named.empty())
    check(
        !candidates.empty(),
        "no network interface of {} has an address that other machines can reach. It has: {}. Set {} to the "
        "name of one",
        host.host, list_of(host.interfaces), variable);
  check(!candidates.empty(), "{}={} names no interface of {} that is up and has an address. It has: {}",
        variable, host.named, host.host, list_of(host.interfaces));
  check(
      !candidates[0].loopback,
      "{}={} is the loopback interface of {}, which other machines do not reach. Set it to another, or unset "
      "it. {} has: {}",
      variable, host.named, host.host, host.host, list_of(host.interfaces));
  const auto meets_all = [&](const Interface& mine) {
    return std::ranges::all_of(hosts, [&](const HostInterfaces& other) {
      return other.host == host.host || std::ranges::any_of(other.interfaces, [&](const Interface& theirs) {
               return !theirs.loopback && same_subnet(mine, theirs);
             });
    });
  };
  const auto best = std::ranges::find_if(candidates, meets_all);
  return best == candidates.end() ? candidates[0] : *best;
}

Network find_network(const Ranks& ranks, Device device) {
  const char* variable = variable_of(device);
  const char* named = std::getenv(variable);
  const HostInterfaces mine{
      .host = this_host(), .named = named ? named : "", .interfaces = interfaces_of_this_host()};
  std::vector<HostInterfaces> of_ranks;
  for (const std::string& text : ranks.exchange(encode(mine))) of_ranks.push_back(decode(text));
  std::map<std::string, size_t> first_rank;  // of each host
  for (size_t r = 0; r < of_ranks.size(); ++r) first_rank.try_emplace(of_ranks[r].host, r);
  if (first_rank.size() == 1) return {};
  const auto has_ipv4 = [](const HostInterfaces& host) {
    return !std::ranges::all_of(host.interfaces, &Interface::loopback);
  };
  if (device == Device::kCuda && !std::ranges::all_of(of_ranks, has_ipv4)) return {};  // NCCL knows IPv6
  const auto own = static_cast<size_t>(ranks.rank);
  std::map<std::string, Interface> chosen;
  for (const auto& [host, rank] : first_rank) chosen[host] = choose_interface(device, of_ranks, rank);
  const Interface& from = choose_interface(device, of_ranks, own);
  const bool is_first = first_rank.at(mine.host) == own;
  std::optional<Listener> listener;
  if (is_first) listener.emplace(from.address);
  const std::vector<std::string> ports = ranks.exchange(is_first ? std::to_string(listener->port) : "0");
  std::string failure;
  Network found{.interface = from.name, .text = ""};
  for (const auto& [host, rank] : first_rank) {
    const Interface& to = chosen.at(host);
    found.text +=
        fmt::format("{}{} by {} ({})", found.text.empty() ? "" : ", ", host, to.name, text_of(to.address));
    if (!is_first || host == mine.host || !failure.empty()) continue;
    const std::string why = why_unreachable(from, to.address, std::stoi(ports[rank]));
    if (!why.empty())
      failure = fmt::format(
          "{} by {} ({}/{}) does not reach {} by {} ({}/{}): {}. Set {} on each machine to the interface "
          "that "
          "the others reach. {} has: {}; {} has: {}",
          mine.host, from.name, text_of(from.address), from.bits, host, to.name, text_of(to.address), to.bits,
          why, variable, mine.host, list_of(mine.interfaces), host, list_of(of_ranks[rank].interfaces));
  }
  for (const std::string& one : ranks.exchange(failure)) check(one.empty(), "{}", one);
  return found;
}

}  // namespace tessera
