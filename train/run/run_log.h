// What a run says: to people on the terminal, to programs in metrics.jsonl. The rank that leads speaks; the
// RunLog of another drops everything.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "kernels/base/status_line.h"
#include "train/report/metrics.h"
#include "train/report/run_report.h"
#include "train/run/checkpoint.h"
#include "train/run/progress.h"

namespace tessera {

class RunLog {
 public:
  // Every line of metrics.jsonl tells where `run` is at that moment.
  RunLog(const Config& config, const RunState& run, bool speaks);

  StatusLine& line() { return line_; }
  void open_metrics(const std::filesystem::path& path, int64_t keep_to_step);  // as MetricsFile
  // Whether an earlier run has left a line of this type for the step that is resumed from.
  bool has(const std::string& type) const { return metrics_ && metrics_->kept(type); }
  void sync() {
    if (metrics_) metrics_->sync();
  }

  // In this order, the first one once. `resumed` is the checkpoint; empty: a fresh run.
  void begin(const RunDescription& description, const std::filesystem::path& resumed);
  void step(const TrainState::StepResult& result, double learning_rate, double seconds,
            const MemoryLedger& ledger);
  void under_way(int64_t step, const std::string& what, int64_t done, int64_t total, const std::string& unit,
                 double seconds);  // on a terminal, while it is
  void evaluation(double loss, int64_t sequences, double seconds);
  void sample(const std::string& text, double seconds);
  void checkpoint(const std::filesystem::path& path, double seconds, bool best);
  void signal(int number);
  // "finished", "signal", "error"; the last one
  void stop(const char* reason, const std::string& message);

 private:
  using Clock = std::chrono::steady_clock;
  void record(const char* type, const nlohmann::ordered_json& figures);
  void raise_peak(double flops);

  const Config& config_;
  const RunState& run_;
  StatusLine line_;
  std::optional<MetricsFile> metrics_;
  std::optional<RunReport> report_;  // follows metrics_
  TimeLeft time_left_;
  Interval interval_;  // since the last printed line
  RunShape shape_{};
  double sequences_per_epoch_ = 1;
  double peak_flops_ = 0, peak_told_ = 0;  // of one device; as it was last printed
  int64_t memory_told_ = 0;                // bytes, in the last line of type memory
  Clock::time_point started_ = Clock::now();
};

}  // namespace tessera
