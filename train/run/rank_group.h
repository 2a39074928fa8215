// RankGroup: the ranks of a run as the trainer sees them. A run of one rank has no process group: then
// nothing here costs or waits.
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
  // The place of this rank on an axis
  AxisPlace place(Axis axis) const { return mesh_shape_.place(axis, rank()); }

  std::string machine() const;  // the name of this rank's machine
  bool on_one_machine();        // whether all ranks are on one machine

  // The number of machines, if the ranks of each are neighbours and each has the same number; else 1. Equal
  // on all ranks
  int64_t nodes();

  // How the machines reach one another: Network::text; "" if all ranks are on one host, or before connect()
  const std::string& network() const { return network_.text; }

  // Connects the ranks for tensors of the backend's device, until finish(). Replaces an earlier mesh. The
  // backend must outlive the connection. All ranks call it together.
  const Mesh& connect(Backend& be, const MeshShape& shape);
  void disconnect();  // call it before the backend ends; finish() includes it

  // How long this rank has waited for collectives since the last call; see Communicator::take_past_waits().
  double take_past_waits() { return group_ ? mesh_->take_past_waits() : 0; }

  // Over all ranks, which all call it. Bits are equal on every rank.
  std::vector<double> sum(const std::vector<double>& mine);
  std::vector<double> gather(double mine);  // all ranks' values, in the order of ranks
  // The least limit that any rank has for its device's memory. All ranks use it, so that they choose the same
  // micro-batch.
  MemoryLimit memory_limit(Device device);
  // Error: not all ranks have the same text. `what` says what the text is, and what to do.
  void check_same(std::string_view mine, std::string_view what);
  // The same for many lines. The Error names the first rank with other lines, its machine, and the first line
  // that differs.
  void check_same_lines(std::string_view mine, std::string_view what);

  std::vector<std::string> exchange(std::string_view mine);  // the texts of all ranks, at every rank
  // Rank 0's text, at every rank
  std::string of_rank_0(std::string_view mine);

  // For the watchdog: see ProcessGroup::enter_phase().
  void enter_phase(std::string_view name, Timeout timeout = Timeout::kLimit);
  // Runs body(). With several ranks, an exception ends them all with one message; with one rank the caller
  // gets it. Work that body() has left on a device may never end, so the owner of that work should outlive
  // this call.
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
  std::optional<Clock::time_point> failed_at_;  // when the watchdog's thread saw that communication had
                                                // failed
};

}  // namespace tessera
