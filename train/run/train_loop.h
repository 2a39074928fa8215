// The loop over a run that is set up: steps, evaluations, samples, checkpoints, until the last step or a
// signal.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "train/memory/plan.h"
#include "train/run/checkpoint.h"
#include "train/run/rank_group.h"
#include "train/run/run_data.h"
#include "train/run/run_log.h"
#include "train/run/stopping.h"
#include "train/session/device.h"
#include "train/session/train_state.h"

namespace tessera {

// What the loop works on; it all outlives the loop.
struct OpenRun {
  const Config& config;
  RankGroup& ranks;
  const DeviceChoice& device;
  const RunPlan& plan;
  const RunData& data;
  Arena& arena;
  TrainState& state;
  RunState& now;  // the last step that is done
  RunLog& log;
  std::vector<int32_t>&tokens, &targets;  // of this rank's sequences of the step that comes next
  double peak_flops;                      // of one device
  std::filesystem::path folder, checkpoints;
  std::filesystem::path profile;     // of the memory; empty: none is asked for
  std::filesystem::path resumed;     // the checkpoint; empty: a fresh run
  std::vector<std::string> notices;  // for rank 0 to print when the run starts
};

// Reads this rank's sequences of the step that begins at `position` of the data. Error: as Loader::fetch().
void fetch_step(const RunData& data, const RunShape& shape, int64_t rank, int64_t position,
                std::vector<int32_t>& tokens, std::vector<int32_t>& targets);

class TrainLoop {
 public:
  explicit TrainLoop(const OpenRun& run);
  void run();  // as train() says

 private:
  // What a step is followed by.
  struct Due {
    bool evaluation = false, sample = false, checkpoint = false;
  };

  const RunShape& shape() const { return run_.plan.shape; }
  void train_all();
  Due due_before_steps();
  Due due_after(int64_t step) const;
  void work(const Due& due);
  bool train_step(int64_t step);
  std::optional<double> evaluate();
  void sample();
  void save();
  void end();
  void report_ranks();
  void write_profile();

  OpenRun run_;
  Stopping stopping_;
  int64_t saved_;            // the step of the newest checkpoint of this run
  double step_seconds_ = 0;  // the last step, or what one is expected to take; equal at all ranks
};

}  // namespace tessera
