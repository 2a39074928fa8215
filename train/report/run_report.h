// RunReport: keeps report.html of a running training up to date.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

#include "kernels/base/status_line.h"
#include "train/config/config.h"
#include "train/report/event_file.h"
#include "train/report/line_tail.h"
#include "train/report/run_record.h"

namespace tessera {

// Follows metrics.jsonl in the run's folder and reads each line once: the page, and TensorBoard's events, are
// made from what stands there. A report that cannot be written is a notice, never the end of a run.
class RunReport {
 public:
  // With train.report a page, with train.tensorboard event files, in train.folder, which exists. The lines
  // that are in metrics.jsonl now are an earlier process's. Notices go to `line`, which outlives this.
  RunReport(const Config& config, StatusLine& line);
  ~RunReport();  // brings all up to date, the page for the last time
  // Between any two steps: does nothing, until it is time. Then reads what is new and writes the page: every
  // kSeconds, or so that no more than 1 / kShare of the time goes into it.
  void refresh();

  static constexpr double kSeconds = 10, kShare = 500;

 private:
  void follow();
  void write_page(bool running);
  void guarded(bool running);

  using Clock = std::chrono::steady_clock;
  std::filesystem::path folder_;
  bool page_;
  StatusLine& line_;
  LineTail tail_;
  int64_t first_new_ = 0;  // offset in metrics.jsonl of this process's first line
  bool any_new_ = false;   // a line of this process was read
  RunRecord record_;
  std::optional<EventFile> events_;
  Clock::time_point next_ = Clock::now();
  double every_ = kSeconds;
  bool failed_ = false;  // said once
};

}  // namespace tessera
