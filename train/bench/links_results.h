// The figures of ./bench links, their table, and which are slow beside the others.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace tessera {

inline constexpr double kSlowShare = 0.7;  // of the median: below it a figure is slow

struct LinksResults {
  struct Rank {
    std::string machine, device;
    double flops = 0;                      // of a GEMM
    double memory = 0, host = 0;           // bytes/s read and written by a copy: of the device, of its host
    double send = 0;                       // bytes/s to the other ranks of its machine; 0: it has none
    double disk_write = 0, disk_read = 0;  // bytes/s; of the first rank of each machine, else 0
  };
  // From one machine to another, by all its ranks together; with one machine, from rank to rank
  struct Link {
    int64_t from = 0, to = 0;
    double rate = 0;     // bytes/s
    double seconds = 0;  // of a small message
  };
  bool of_machines = false;       // whether links are those of machines
  std::vector<std::string> ends;  // names: "node7", or "rank 3"
  std::vector<Rank> ranks;
  std::vector<Link> links;
};

std::string links_table(const LinksResults& results);
// What is below kSlowShare of the median of its kind, or takes longer than the median over kSlowShare: the
// slowest first. Two of a kind have no median: the slower one counts beside the faster.
std::vector<std::string> slow_ones(const LinksResults& results);
nlohmann::ordered_json json_of(const LinksResults& results);

}  // namespace tessera
