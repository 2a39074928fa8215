// The training loop: steps, evaluations, samples and checkpoints, until the last step or a signal.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "train/run/bad_step_handler.h"
#include "train/run/open_run.h"
#include "train/run/position_losses.h"
#include "train/run/run_checkpoints.h"
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
  Outcome take_bad_step(const BadStep& bad, double seconds);
  void count_next(std::span<const double> counts);
  std::optional<double> evaluate();
  std::function<std::vector<float>(const SequencesView&, int64_t)> reference_losses();
  std::vector<TaskResult> evaluate_tasks();
  void sample();
  void end();
  void tell_of_slow_ranks(std::span<const double> own);
  void report_ranks();
  void write_profile();

  OpenRun& run_;
  Stopping stopping_;
  RunCheckpoints checkpoints_;
  BadStepHandler bad_steps_;
  StepTokens next_tokens_;    // the tokens of phase().next(), over all ranks
  PositionLosses positions_;  // of the last evaluation, with evaluation.by_position
  SlowRanks slow_ranks_;
  double step_seconds_ = 0;  // of the last step, or expected before the first; equal on all ranks
};

}  // namespace tessera
