// Ranks: what a process knows of the others before they can communicate.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// Gives this rank's bytes to all ranks; returns those of all, in the order of ranks. All ranks call it.
using Exchange = std::function<std::vector<std::string>(std::string_view mine)>;

struct Ranks {
  int rank = 0, size = 1;
  Exchange exchange = {};          // may be empty for a single rank; used by make_communicator alone
  double time_limit_seconds = 60;  // of every collective; of connecting (through Gloo, five times that)
  // By which other hosts are reached: Network::interface. Empty: all ranks are on one host, or the
  // communicator is to find it
  std::string interface = {};
};

}  // namespace tessera
