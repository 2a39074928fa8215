// Peers: the ranks of a run as the trainer sees them. A run of one process has none, and then nothing here
// costs or waits.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "train/config/config.h"
#include "train/launch/process_group.h"
#include "train/parallel/communicator.h"
#include "train/session/memory_limit.h"

namespace tessera {

class Peers {
  using Clock = std::chrono::steady_clock;

 public:
  // Meets the other ranks of `world`. Error: as Team::join(); another program or configuration there.
  Peers(const World& world, const Config& config);

  int64_t rank() const { return world_.rank; }
  int64_t size() const { return world_.size; }
  bool leads() const { return rank() == 0; }            // the one that prints and writes
  int local_rank() const { return world_.local_rank; }  // on this machine

  // Joins tensors of the backend's device; null for a run of one. Ends before the backend does.
  Communicator* connect(Backend& be);

  // Over all ranks, which all have to call it. Equal bits at all of them.
  std::vector<double> sum(const std::vector<double>& mine);
  std::vector<double> gather(double mine);  // in the order of ranks
  // What each rank may take of its device's memory, the least of all: all come to the same micro-batch.
  MemoryLimit memory_limit(Device device);
  // Error unless all ranks have the same text; `what` it is, and what to do.
  void check_same(std::string_view mine, std::string_view what);

  // Where this rank is, for the watch over ranks that hang: see Team::at().
  void at(std::string_view what, Pace pace = Pace::kTogether);
  // Runs body(). Where there are other ranks, what it throws ends them all with one message; else the caller
  // gets it. What body() leaves unfinished on a device may never end: what holds it should outlive the call.
  void guard(const std::function<void()>& body);
  void leave();  // all ranks are done

 private:
  std::string communication_failure();

  World world_;
  double time_limit_;
  std::unique_ptr<Team> team_;
  std::unique_ptr<Communicator> communicator_;
  std::optional<Clock::time_point> failed_at_;  // communication, as the team's thread has seen it
};

}  // namespace tessera
