// Ranks: what a process knows of the other ranks before they can communicate.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// Gives this rank's bytes to all ranks. Returns the bytes of all, in the order of ranks. All ranks call it.
using Exchange = std::function<std::vector<std::string>(std::string_view mine)>;

struct Ranks {
  int rank = 0, size = 1;
  Exchange exchange = {};          // may be empty for a single rank; only make_communicator() uses it
  double time_limit_seconds = 60;  // of every collective, and of connecting (through Gloo, five times as
                                   // long)
  // The interface through which other hosts are reached: Network::interface. Empty: all ranks are on one
  // host, or the communicator has to find the interface
  std::string interface = {};
};

}  // namespace tessera
