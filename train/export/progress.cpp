#include "train/export/progress.h"

#include <unistd.h>

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/base/ledger.h"
#include "kernels/base/signals.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kQuietSeconds = 5;  // between the lines of a log

}  // namespace

ExportProgress::ExportProgress() : line_(STDERR_FILENO, kQuietSeconds), start_(Clock::now()) {}

void ExportProgress::begin(std::string stage, int64_t bytes) {
  stage_ = std::move(stage);
  bytes_ = bytes;
  done_ = 0;
  start_ = Clock::now();
}

void ExportProgress::add(int64_t bytes) {
  check(stop_signal() == 0, "stopped by a signal; nothing was written");
  done_ += bytes;
  if (!line_.due()) return;
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  const double rate = static_cast<double>(done_) / std::max(seconds, 1e-9);
  line_.show(
      {{fmt::format("export: {} {:.0f}%", stage_,
                    100 * static_cast<double>(done_) / static_cast<double>(std::max<int64_t>(1, bytes_))),
        1},
       {fmt::format("{} of {}", format_bytes(done_), format_bytes(bytes_)), 2},
       {fmt::format("{:.0f} MB/s", rate / 1e6), 3}});
}

void ExportProgress::notice(const std::string& text) { line_.notice(text); }

}  // namespace tessera
