// RankGroups of the processes that on_ranks() starts.
#pragma once

#include "tests/rank_processes.h"
#include "train/launch/connection.h"
#include "train/run/rank_group.h"

namespace tessera::testing {

// The world of a rank of on_ranks(): rank 0 listens at a port that is free.
inline World world_of(const Ranks& ranks) {
  Descriptor listening;
  if (ranks.rank == 0) listening = listen_at("127.0.0.1", 0, Reach::kThisMachine);
  const std::string mine = ranks.rank == 0 ? std::to_string(port_of(listening)) : "";
  const int port = std::stoi(ranks.exchange(mine)[0]);
  return {.rank = ranks.rank,
          .size = ranks.size,
          .local_rank = ranks.rank,
          .local_size = ranks.size,
          .master_port = port,
          .from = "",
          .listening_fd = ranks.rank == 0 ? listening.release() : -1};
}

}  // namespace tessera::testing
