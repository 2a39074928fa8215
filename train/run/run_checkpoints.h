// The checkpoints that a run writes, one at a time, while training goes on. When one is whole, those that no
// rule keeps are removed.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>

#include "kernels/base/clock.h"
#include "train/run/checkpoint.h"
#include "train/run/checkpoint_folder.h"
#include "train/run/open_run.h"

namespace tessera {

// All ranks call save() and finish(), in the same order.
class RunCheckpoints {
 public:
  explicit RunCheckpoints(OpenRun& run);  // which outlives it

  // Writes run.now. Waits for the checkpoint before it; a small one is on the disk when this returns.
  void save();
  void save_if_new() {
    if (run_.now.step > newest_) save();
  }
  // The checkpoint that is being written gets its name, if it is on the disk already; `waits`: when it is
  void finish(bool waits);

  // The step of the newest one, maybe still being written; before the first one, where the run begins
  int64_t newest() const { return newest_; }
  // Called before each step
  void step_begins() {
    if (run_.now.step == newest_) at_newest_ = run_.now;
  }
  const RunState& at_newest() const { return at_newest_; }  // run.now when the step after newest() began
  CheckpointOptions options() const;

 private:
  bool written_within(double seconds);

  struct Pending {
    std::unique_ptr<PendingCheckpoint> checkpoint;
    KeepRule keep;  // applied when the checkpoint is done
    int64_t step;
    bool is_best;  // its evaluation was the lowest at that time
    Clock::time_point start;
  };
  OpenRun& run_;
  std::optional<Pending> pending_;
  int64_t newest_;
  RunState at_newest_;
  std::set<std::string> told_;  // of older checkpoints that could not be removed; already printed
};

}  // namespace tessera
