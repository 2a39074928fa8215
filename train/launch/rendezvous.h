// How the ranks of a run find one another, before they are a process group.
#pragma once

#include <string>
#include <vector>

#include "train/launch/connection.h"
#include "train/launch/messages.h"
#include "train/launch/world.h"

namespace tessera {

inline constexpr double kDrainSeconds = 1;  // how long the others have to receive a refusal or a shutdown

// What this process knows of another rank
struct Peer {
  int rank;
  std::string name;  // for people: "rank 2 (pid 4711 on node7)"
  Connection connection;
};

std::string name_of_this_process(const World& world);

// On rank 0 all other ranks, in the order of ranks; on other ranks only rank 0. Errors: see
// ProcessGroup::join().
std::vector<Peer> rendezvous(const World& world, const RunIdentity& run, double time_limit_seconds);

}  // namespace tessera
