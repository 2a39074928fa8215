// The training loop: steps, evaluations, samples and checkpoints, until the last step or a signal.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "train/memory/run_plan.h"
#include "train/run/checkpoint.h"
#include "train/run/position_losses.h"
#include "train/run/rank_group.h"
#include "train/run/run_data.h"
#include "train/run/run_log.h"
#include "train/run/stopping.h"
#include "train/session/device.h"
#include "train/session/train_state.h"
#include "train/tasks/score.h"

namespace tessera {

// What the loop works on; all of it outlives the loop.
struct OpenRun {
  const Config& config;
  RankGroup& ranks;
  const DeviceChoice& device;
  const RunPlan& plan;
  const RunData& data;
  const std::vector<Task>& tasks;  // of evaluation.tasks
  Arena& arena;
  TrainState& state;
  RunState& now;  // after the last finished step
  RunLog& log;
  Sequences& next;    // this rank's, of the next step
  double peak_flops;  // of one device
  std::string gemms;  // see RunDescription
  std::filesystem::path folder, checkpoints;
  std::filesystem::path profile;    // folder of the memory profile; empty: none
  std::filesystem::path resumed;    // the checkpoint; empty: a fresh run
  const CopiedFiles& copied;        // into every checkpoint
  const nlohmann::json& token_ids;  // the same
  // Rebuilds plan, data, arena, state and next, and changes `now`, for the next phase of
  // train.context_schedule, from the checkpoint of the last step.
  std::function<void(const std::filesystem::path&)> next_phase;
  std::vector<std::string> notices;  // for rank 0 to print when the run starts
};

// Reads this rank's sequences of the step that begins at `position` of the data. `rank`: its place on the data
// axis. Error: as Loader::fetch().
void fetch_step(const RunData& data, const RunShape& shape, const AxisPlace& rank, int64_t position,
                Sequences& out);

class TrainLoop {
 public:
  explicit TrainLoop(const OpenRun& run);
  void run();  // as train() says

 private:
  // The tasks after a step
  struct Due {
    bool evaluation = false, sample = false, checkpoint = false;
  };

  const RunShape& shape() const { return run_.plan.shape; }
  void train_all();
  bool is_out_of_patience() const;  // the same on all ranks
  bool has_last_sample() const;
  std::string patience_text() const;
  Due due_before_steps();
  Due due_after(int64_t step) const;
  void work(const Due& due);
  void expect_steps();
  RunDescription description() const;
  bool evaluates_first() const;
  void begin_phase();
  bool train_step(int64_t step);
  void count_next(std::span<const double> counts);
  std::optional<double> evaluate();
  std::vector<TaskResult> evaluate_tasks();
  void sample();
  void save();
  void end();
  void tell_best();
  void report_ranks();
  void write_profile();

  OpenRun run_;
  Stopping stopping_;
  int64_t saved_;             // the step of the newest checkpoint of this run
  StepTokens next_tokens_;    // of run_.next, over all ranks
  PositionLosses positions_;  // of the last evaluation, with evaluation.by_position
  double step_seconds_ = 0;   // of the last step, or expected before the first; equal on all ranks
};

}  // namespace tessera
