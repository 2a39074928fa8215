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

// Follows metrics.jsonl in the run's folder and reads each line once: the page and TensorBoard's events are
// made from that file alone. A report that cannot be written is a notice; it never stops a run.
class RunReport {
 public:
  // With train.report a page, with train.tensorboard event files, in train.folder, which exists. The
  // present lines of metrics.jsonl are of an earlier process. Notices go to `line`, which outlives this
  // object. Nothing is written where `check_folder` throws: train.folder is not this run's any more, and
  // the run says so.
  RunReport(
      const Config& config, StatusLine& line, std::function<void()> check_folder = [] {});
  ~RunReport();  // writes everything a last time
  // Called between any two steps. Reads the new lines and writes the page every kSeconds, or less often: it
  // takes at most 1 / kShare of the time.
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
  int64_t first_new_ = 0;  // offset in metrics.jsonl of this process's first line
  bool any_new_ = false;   // a line of this process was read
  RunRecord record_;
  std::optional<EventFile> events_;
  Clock::time_point next_ = Clock::now();
  double every_ = kSeconds;
  bool failed_ = false;  // the notice was printed
};

}  // namespace tessera
