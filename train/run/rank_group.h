// RankGroup: the ranks of a run as the trainer sees them. A run of one rank has no process group: nothing
// here costs or waits then.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/communicator.h"
#include "train/config/config.h"
#include "train/launch/process_group.h"
#include "train/parallel/mesh.h"
#include "train/parallel/network.h"
#include "train/session/memory_limit.h"

namespace tessera {

class RankGroup {
 public:
  // The rendezvous with the other ranks of `world`. Error: as ProcessGroup::join().
  RankGroup(const World& world, const Config& config);

  int64_t rank() const { return world_.rank; }
  int64_t size() const { return world_.size; }
  bool is_rank_0() const { return rank() == 0; }        // the one that prints and writes
  int local_rank() const { return world_.local_rank; }  // on this machine
  // This rank on an axis
  AxisPlace place(Axis axis) const { return mesh_shape_.place(axis, rank()); }

  std::string machine() const;  // its name
  bool on_one_machine();        // whether all ranks are

  // The machines of the run, if their ranks are neighbours and each has as many; else 1. Equal at all ranks
  int64_t nodes();

  // How the machines reach one another: Network::text; "" on one host, or before connect()
  const std::string& network() const { return network_.text; }

  // For tensors of the backend's device, until finish(), in place of the mesh before. The backend must
  // outlive it. All ranks call it together.
  const Mesh& connect(Backend& be, const MeshShape& shape);
  void disconnect();  // before the backend ends; a run does it with finish()

  // How long this rank has waited for collectives since the last call; see Communicator::take_past_waits().
  double take_past_waits() { return group_ ? mesh_->take_past_waits() : 0; }

  // Over all ranks; all call it. Equal bits at every rank.
  std::vector<double> sum(const std::vector<double>& mine);
  std::vector<double> gather(double mine);  // in the order of ranks
  // What each rank may use of its device's memory, the least of all: all choose the same micro-batch.
  MemoryLimit memory_limit(Device device);
  // Error unless all ranks have the same text; `what` says what it is, and what to do.
  void check_same(std::string_view mine, std::string_view what);
  // The same of many lines: the Error names the first rank that has others, its machine, and the first line.
  void check_same_lines(std::string_view mine, std::string_view what);

  std::vector<std::string> exchange(std::string_view mine);  // the texts of all ranks, at every rank
  // Rank 0's text, at every rank
  std::string of_rank_0(std::string_view mine);

  // For the watchdog: see ProcessGroup::enter_phase().
  void enter_phase(std::string_view name, Timeout timeout = Timeout::kLimit);
  // Runs body(). With other ranks, an exception ends them all with one message; with one rank the caller gets
  // it. Work that body() has left on a device may never end: its owner should outlive the call.
  void guard(const std::function<void()>& body);
  void finish();  // waits until all ranks are done

 private:
  std::string communication_failure();

  World world_;
  MeshShape mesh_shape_;
  double time_limit_;  // seconds
  std::unique_ptr<ProcessGroup> group_;
  std::unique_ptr<Mesh> mesh_;
  bool found_network_ = false;
  Network network_;
  std::optional<Clock::time_point> failed_at_;  // when the watchdog's thread saw communication fail
};

}  // namespace tessera
