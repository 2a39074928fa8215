// RunReport: keeps report.html of a running training up to date.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "kernels/base/status_line.h"
#include "train/config/config.h"
#include "train/report/event_file.h"
#include "train/report/line_tail.h"
#include "train/report/run_record.h"

namespace tessera {

// Follows metrics.jsonl in the run's folder and reads each line once. The page and TensorBoard's events are
// made only from that file. If a report cannot be written, this is a notice; it never stops a run.
class RunReport {
 public:
  // With train.report it writes a page, and with train.tensorboard event files, in train.folder, which must
  // exist. Lines that metrics.jsonl has already are of an earlier process. Notices go to `line`, which must
  // outlive this object. If `check_folder` throws, nothing is written: train.folder is no longer this run's,
  // and the run reports that itself.
  RunReport(
      const Config& config, StatusLine& line, std::function<void()> check_folder = [] {});
  ~RunReport();  // writes everything a last time
  // Call it between any two steps. Reads the new lines, and writes the page every kSeconds, or less often so
  // that it takes at most 1 / kShare of the time.
  void refresh();

  static constexpr double kSeconds = 10, kShare = 500;

 private:
  void follow();
  void write_page(bool running);
  void guarded(bool running);
  bool lost_folder() const;

  using Clock = std::chrono::steady_clock;
  std::filesystem::path folder_;
  bool page_;
  StatusLine& line_;
  std::function<void()> check_folder_;
  LineTail tail_;
  int64_t first_new_ = 0;  // where this process's first line begins in metrics.jsonl
  bool any_new_ = false;   // a line of this process was read
  RunRecord record_;
  std::optional<EventFile> events_;
  Clock::time_point next_ = Clock::now();
  double every_ = kSeconds;
  bool failed_ = false;  // the notice was already printed
};

}  // namespace tessera
