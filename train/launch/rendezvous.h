// How the ranks of a run meet, before they are a Team.
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "train/launch/connection.h"
#include "train/launch/process_group.h"

namespace tessera {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The body of a message. Bytes that are not UTF-8, as a host's name may hold, are replaced.
using Json = nlohmann::json;
inline std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

inline constexpr double kFarewellSeconds = 1;  // for the others to hear of a refusal or an ending

// Another rank, as this process knows it.
struct Member {
  int rank;
  std::string name;  // for people: "rank 2 (pid 4711 on node7)"
  Connection connection;
};

std::string name_of_this_process(const World& world);

// At rank 0 all others, in the order of ranks; elsewhere rank 0 alone. Errors: see Team::join().
std::vector<Member> meet(const World& world, const Introduction& introduction, double time_limit_seconds);

}  // namespace tessera
