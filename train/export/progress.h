// Shows the progress of an export on stderr: the share of the work that is done, and the speed.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "kernels/base/status_line.h"

namespace tessera {

class ExportProgress {
 public:
  ExportProgress();

  // A stage of the work, such as "writing", that handles so many bytes
  void begin(std::string stage, int64_t bytes);
  void add(int64_t bytes);  // Error: a signal asks to stop: see record_stop_signals()
  void notice(const std::string& text);
  void clear() { line_.clear(); }

 private:
  StatusLine line_;
  std::string stage_;
  int64_t bytes_ = 0, done_ = 0;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace tessera
