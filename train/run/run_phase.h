// RunPhase: a phase of train.context_schedule, with everything that depends on the length of its sequences:
// the plan, the data, the memory, and the state in that memory. A run holds one phase at a time. Without a
// schedule, the run is one phase.
#pragma once

#include <optional>

#include "kernels/base/present.h"
#include "train/memory/run_plan.h"
#include "train/parallel/mesh.h"
#include "train/run/run_data.h"
#include "train/session/train_state.h"

namespace tessera {

class RunPhase {
 public:
  // Opens the data. `run` is the configuration of all phases, `index` counts them from 0, and `shift` is that
  // of the training sequences. If the data has weights, the plan includes memory for them. Error: as RunData.
  RunPhase(const Config& run, size_t index, const RunPlan& plan, bool shift);

  // Reads this rank's sequences of a step into next(). The step begins at `position` of the data. `rank`:
  // this rank's place on the data axis. Error: as SequenceSource::fetch().
  void fetch_step(int64_t position, const AxisPlace& rank) { fetch_step(position, rank, next_); }
  Sequences& next() { return next_; }
  void fetch_step(int64_t position, const AxisPlace& rank, Sequences& into) const;
  // Where these sequences are in the data
  std::vector<int64_t> positions_of_step(int64_t position, const AxisPlace& rank) const;

  struct Memory {
    Backend& backend;
    const Mesh& ranks;  // of the run
    bool recorded;      // for a memory profile
    bool resuming;      // limits what advice may change: see advice()
  };
  // Takes the memory of the plan, and allocates the state. Error: OutOfMemory, with advice.
  void allocate(const Memory& memory);
  Arena& arena() { return present(arena_); }
  TrainState& state() { return present(state_); }

  size_t index() const { return index_; }
  const RunPlan& plan() const { return plan_; }
  const RunShape& shape() const { return plan_.shape; }
  const RunData& data() const { return data_; }

 private:
  size_t index_;
  Config config_;  // for this phase
  RunData data_;
  RunPlan plan_;
  Sequences next_;
  std::optional<Arena> arena_;
  std::optional<TrainState> state_;
};

}  // namespace tessera
