// Peers: the ranks of a run as the trainer sees them. A run of one process has none, and then nothing here
// costs or waits.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "train/config/config.h"
#include "train/parallel/communicator.h"
#include "train/parallel/team.h"

namespace tessera {

class Peers {
 public:
  // Meets the other ranks of `world`. Error: as Team::join(); another program or configuration there.
  Peers(const World& world, const Config& config);

  int64_t rank() const { return world_.rank; }
  int64_t size() const { return world_.size; }
  bool leads() const { return rank() == 0; }            // the one that prints and writes
  int local_size() const { return world_.local_size; }  // ranks on this machine

  // Joins tensors of the backend's device; null for a run of one. Ends before the backend does.
  Communicator* connect(Backend& be);

  // Over all ranks, which all have to call it. Equal bits at all of them.
  std::vector<double> sum(std::initializer_list<double> mine);
  std::vector<double> gather(double mine);  // in the order of ranks
  // Error unless all ranks have the same text; `what` it is, and what to do.
  void check_same(std::string_view mine, std::string_view what);

  // Where this rank is, for the watch over ranks that hang: see Team::at().
  void at(std::string_view what, Pace pace = Pace::kTogether);
  // Ends all ranks if there are others; else returns, and whoever called reports the error.
  void fail(std::string_view message);
  void leave();  // all ranks are done

 private:
  World world_;
  double time_limit_;
  std::unique_ptr<Team> team_;
  std::unique_ptr<Communicator> communicator_;
};

}  // namespace tessera
