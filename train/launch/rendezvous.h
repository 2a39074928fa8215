// How the ranks of a run find one another, before they are a process group.
#pragma once

#include <string>
#include <vector>

#include "train/launch/connection.h"
#include "train/launch/messages.h"
#include "train/launch/world.h"

namespace tessera {

inline constexpr double kDrainSeconds = 1;  // in which the others receive a refusal or a shutdown

// Another rank, as this process knows it.
struct Peer {
  int rank;
  std::string name;  // for people: "rank 2 (pid 4711 on node7)"
  Connection connection;
};

std::string name_of_this_process(const World& world);

// At rank 0 all others, in the order of ranks; elsewhere rank 0 alone. Errors: see ProcessGroup::join().
std::vector<Peer> rendezvous(const World& world, const RunIdentity& run, double time_limit_seconds);

}  // namespace tessera
