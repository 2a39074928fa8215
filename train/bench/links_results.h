// The figures of `./bench links`, their table, and which of them are slow compared with the others
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace tessera {

inline constexpr double kSlowShare = 0.7;  // a figure below this share of the median is slow

struct LinksResults {
  struct Rank {
    std::string machine, device;
    double flops = 0;                      // of a GEMM
    double memory = 0, host = 0;           // bytes/s that a copy reads and writes: in the device's memory, in
                                           // its host's
    double send = 0;                       // bytes/s to the other ranks of its machine; 0: there are none
    double disk_write = 0, disk_read = 0;  // bytes/s; 0 except on the first rank of each machine
  };
  // From one machine to another, by all its ranks together; if there is one machine, from rank to rank
  struct Link {
    int64_t from = 0, to = 0;
    double rate = 0;     // bytes/s
    double seconds = 0;  // of a small message
  };
  bool of_machines = false;       // the links are between machines, not ranks
  std::vector<std::string> ends;  // names of the links' ends: "node7", or "rank 3"
  std::vector<Rank> ranks;
  std::vector<Link> links;
};

std::string links_table(const LinksResults& results);
// The slow figures: rates below kSlowShare of the median of their kind, and times above the median divided by
// kSlowShare. The slowest come first. For two figures of a kind there is no median: the slower one is
// compared with the faster.
std::vector<std::string> slow_ones(const LinksResults& results);
nlohmann::ordered_json json_of(const LinksResults& results);

}  // namespace tessera
