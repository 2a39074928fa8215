// What a run prints on the terminal and writes to metrics.jsonl. Rank 0 writes; the RunLog of another rank
// writes nothing.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "kernels/base/status_line.h"
#include "train/report/metrics.h"
#include "train/report/run_report.h"
#include "train/run/bad_step.h"
#include "train/run/checkpoint.h"
#include "train/run/data_loss.h"
#include "train/run/metrics_command.h"
#include "train/run/position_losses.h"
#include "train/run/progress.h"
#include "train/tasks/score.h"

namespace tessera {

// The tokens of a step on all ranks
struct StepTokens {
  int64_t counted = 0;        // tokens whose loss counts; with a loss of pairs, pairs
  double weight = 0;          // the sum of their weights
  double attention_span = 0;  // the mean over the tokens: see ModelConfig
};

struct StepSeconds {
  double all = 0;
  double waited = 0;            // for collectives, a mean over the ranks
  double wait_for_slowest = 0;  // a share: see slow_ranks.h
};

class RunLog {
 public:
  // Every line of metrics.jsonl has the step, tokens and epoch of `run` at that moment.
  RunLog(const Config& config, const RunState& run, bool speaks);

  StatusLine& line() { return line_; }
  // As MetricsFile. Also starts train.metrics_command, whose output goes to a file next to `path`. From now
  // on `check_folder` is called before each write to the folder; an exception from it stops the run.
  void open_metrics(
      const std::filesystem::path& path, int64_t keep_to_step, std::function<void()> check_folder = [] {});
  // Whether metrics.jsonl already had a line of this type for the step that the run resumes from.
  bool has(const std::string& type) const { return metrics_ && metrics_->kept(type); }
  void sync() {
    if (metrics_) metrics_->sync();
  }

  // Called once, before all others. `resumed` is the checkpoint that the run resumes from; empty: a new run.
  void begin(const RunDescription& description, const std::filesystem::path& resumed);
  // Called when a phase of train.context_schedule other than the first begins
  void begin_phase(const RunDescription& description);
  // If no token of the step counted, the step was skipped, and `result` is ignored.
  void step(const TrainState::StepResult& result, const StepTokens& tokens, double learning_rate,
            const StepSeconds& seconds, const MemoryLedger& ledger);
  // Called after step(), for the same step
  void inside(const InsideFigures& figures);
  void skipped_step(const BadStep& bad, double seconds);
  // The run has gone back to the step of its RunState. Lines of later steps are dropped.
  void go_back(const BadStep& bad, double seconds);
  // A status line of a task that has not finished
  void progress(int64_t step, const std::string& what, int64_t done, int64_t total, const std::string& unit,
                double seconds);
  void evaluation(const DataLoss& loss, double seconds, const PositionLosses& positions,
                  const std::vector<TaskResult>& tasks);
  void sample(const std::string& text, double seconds);
  void checkpoint(const std::filesystem::path& path, int64_t step, double seconds, bool best);
  void signal(int number);
  // Called once, after all others. `reason`: "finished", "signal" or "error"
  void stop(const char* reason, const std::string& message);

 private:
  using Clock = std::chrono::steady_clock;
  void take(const RunDescription& description);
  void record(const char* type, const nlohmann::ordered_json& figures);
  void tell_of_command();
  void step_without_loss(double learning_rate, double seconds);
  void raise_peak(double flops);

  const Config& config_;
  const RunState& run_;
  StatusLine line_;
  std::function<void()> check_folder_ = [] {};
  std::optional<MetricsFile> metrics_;
  std::optional<MetricsCommand> command_;  // gets the lines of metrics_
  std::optional<RunReport> report_;        // follows metrics_
  TimeLeft time_left_;
  Interval interval_;  // since the last printed line
  RunShape shape_{};
  double sequences_per_epoch_ = 1;
  double peak_flops_ = 0, peak_printed_ = 0;  // of one device; the value printed last
  int64_t memory_recorded_ = 0;               // bytes, in the last line of type memory
  double steps_ = 0, clipped_steps_ = 0;      // both since the last line of type inside
  Clock::time_point started_ = Clock::now();
};

}  // namespace tessera
