// The training loop: steps, evaluations, samples and checkpoints, until the last step or a signal.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/clock.h"
#include "train/run/bad_step.h"
#include "train/run/checkpoint.h"
#include "train/run/checkpoint_folder.h"
#include "train/run/open_run.h"
#include "train/run/position_losses.h"
#include "train/run/slow_ranks.h"
#include "train/run/stopping.h"
#include "train/tasks/score.h"

namespace tessera {

class TrainLoop {
 public:
  explicit TrainLoop(OpenRun& run);  // which outlives it
  void run();                        // throws and returns as train() does

 private:
  // The tasks after a step
  struct Due {
    bool evaluation = false, sample = false, checkpoint = false;
  };

  // Those of the current phase. Call them each time, because the next phase of train.context_schedule has
  // others.
  RunPhase& phase() const { return *run_.phase; }
  const RunShape& shape() const { return run_.shape(); }
  const Tokenizer* tokenizer() const { return phase().data().tokenizer(); }
  void train_all();
  bool is_out_of_patience() const;  // the same on all ranks
  bool has_last_sample() const;
  std::string patience_text() const;
  Due due_before_steps();
  Due due_after(int64_t step) const;
  void work(const Due& due);
  void expect_steps();
  bool evaluates_first() const;
  void begin_phase();
  enum class Outcome : uint8_t {
    kDone,     // the update may have been skipped
    kDropped,  // a signal arrived
    kWentBack  // run_.now is now the state of an earlier step
  };
  Outcome train_step(int64_t step);
  Outcome handle(BadStep bad, double seconds);
  void skip(const BadStep& bad, double seconds);
  void go_back(const BadStep& bad, double seconds);
  [[noreturn]] void stop_at(const BadStep& bad, const StepInputs& inputs, const std::string& used_up);
  std::filesystem::path keep(const BadStep& bad, const std::string& report);
  CheckpointOptions checkpoint_options() const;
  void count_next(std::span<const double> counts);
  std::optional<double> evaluate();
  std::function<std::vector<float>(const SequencesView&, int64_t)> reference_losses();
  std::vector<TaskResult> evaluate_tasks();
  void sample();
  void save();
  bool saved_within(double seconds);  // whether it is on the disk, or on all disks
  void finish_saving(bool waits);     // `waits` is false: only if it is already on the disk
  void end();
  void tell_of_slow_ranks(std::span<const double> own);
  void report_ranks();
  void write_profile();

  OpenRun& run_;
  Stopping stopping_;
  // A checkpoint that is written while training goes on
  struct Saving {
    std::unique_ptr<PendingCheckpoint> checkpoint;
    KeepRule keep;  // applied when the checkpoint is done
    int64_t step;
    bool is_best;  // its evaluation was the lowest at that time
    Clock::time_point start;
  };
  std::optional<Saving> saving_;
  std::set<std::string> told_;  // of older checkpoints that could not be removed; already printed
  RunState at_saved_;           // run_.now when the step after saved_ begins
  int64_t saved_;               // the step of the newest checkpoint of this run, maybe still being written
  StepTokens next_tokens_;      // the tokens of phase().next(), over all ranks
  PositionLosses positions_;    // of the last evaluation, with evaluation.by_position
  SlowRanks slow_ranks_;
  double step_seconds_ = 0;  // of the last step, or expected before the first; equal on all ranks
};

}  // namespace tessera
