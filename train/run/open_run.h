// OpenRun: all that a run owns, from its first check to its last step.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/present.h"
#include "train/run/checkpoint.h"
#include "train/run/disks.h"
#include "train/run/gemm_choices.h"
#include "train/run/kept_files.h"
#include "train/run/progress.h"
#include "train/run/rank_group.h"
#include "train/run/run_folder.h"
#include "train/run/run_log.h"
#include "train/run/run_phase.h"
#include "train/run/trainer_options.h"
#include "train/session/device.h"
#include "train/tasks/task.h"

namespace tessera {

struct RunPaths {
  std::filesystem::path folder, checkpoints;
  std::filesystem::path profile;  // folder of the memory profile; empty: none
  std::filesystem::path resumed;  // the checkpoint that the run resumes from; empty: a new run
};

// What computes: this rank's device, and how it reaches the others
struct RunDevice {
  DeviceChoice choice;
  std::unique_ptr<Backend> backend;
  double peak_flops = 0;  // of one device
  const Mesh* mesh = nullptr;
};

class OpenRun {
 public:
  // Checks and reads everything, takes the memory of the first phase, or of the checkpoint's phase, and loads
  // or initialises the weights. All ranks construct their objects together. Error: everything that makes a
  // run impossible.
  OpenRun(const Config& config, const TrainerOptions& options, RankGroup& ranks);
  OpenRun(const OpenRun&) = delete;

  // Replaces `phase` by the next phase of train.context_schedule, and sets `now` to its beginning. The next
  // phase continues from the checkpoint of the last step, exactly as a run that resumes from it.
  void begin_next_phase();
  // Sets weights and optimizer to what they were at `to`, a state of this phase: to those of its checkpoint,
  // or of the run's start if it is at step 0. `to` may have another position in the data.
  void go_back(const RunState& to);

  // Call it before anything is written to the run's folder or removed there, on every rank and thread. Error:
  // the folder is not this run's any more.
  void check_folder() { present(run_folder_).check_held(); }
  std::set<int64_t>& own_checkpoints() { return present(run_folder_).own_checkpoints(); }

  const RunShape& shape() const { return phase->shape(); }
  RunDescription description() const;

 private:
  std::optional<RunFolder> run_folder_;  // outlives the log, whose last report uses it

 public:
  Config config;  // as it was given, with the steps that train.epochs means
  RankGroup& ranks;
  RunPaths paths;
  Disks disks;  // the disks with the run's folder
  RunDevice device;
  RunState now;                     // the state after the last finished step
  std::vector<Task> tasks;          // of evaluation.tasks
  std::unique_ptr<RunPhase> phase;  // the phase that is running
  RunLog log;
  KeptFiles kept;
  std::vector<std::string> notices;  // rank 0 prints them when the run starts
  bool base_is_kept = false;         // see CheckpointOptions

 private:
  using Checkpoint = const std::filesystem::path*;  // to resume from; null: a new run

  void check_options(const TrainerOptions& options);
  void check_same_files();
  void bring_files();
  bool leads_disk() const { return disks.leads(ranks.rank()); }
  void measure_links();
  void take_shape(Checkpoint checkpoint);
  std::set<int64_t> before_bad_steps(const RunState& was) const;
  static RecentSteps recent_of(const RunState& was, const Config& config, const RunShape& shape);
  void plan_every_phase(size_t first, Checkpoint checkpoint);
  void take_data(Checkpoint checkpoint);
  void check_later_data() const;
  void take_tasks();
  void choose_gemms(bool resuming);
  void allocate(bool resuming);
  void reopen(size_t phase);
  void load_weights(Checkpoint checkpoint);
  void add_notices(const std::vector<std::string>& more) {
    notices.insert(notices.end(), more.begin(), more.end());
  }

  RunState was_;                // the checkpoint's state, if there is one
  std::vector<RunPlan> plans_;  // of all phases
  GemmChoices gemms_;           // the algorithms of all phases
};

}  // namespace tessera
