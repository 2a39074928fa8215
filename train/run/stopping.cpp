#include "train/run/stopping.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/signals.h"
#include "train/run/stop_signals.h"

namespace tessera {

std::vector<double> Stopping::sum(std::vector<double> mine) {
  const size_t count = mine.size();
  for (const int number : kStopSignals) mine.push_back(stop_signal() == number ? 1 : 0);
  std::vector<double> values = ranks_.sum(mine);
  for (size_t i = 0; i < kStopSignals.size() && signal_ == 0; ++i) {
    if (values[count + i] == 0) continue;
    signal_ = kStopSignals[i];
    if (on_signal_) on_signal_(signal_);
  }
  values.resize(count);
  return values;
}

bool Stopping::agreed() {
  sum({});
  return signal_ != 0;
}

bool Stopping::goes_on(bool done) {
  const bool ends = ranks_.is_rank_0() && done;
  return sum({ends ? 1.0 : 0.0})[0] == 0 && signal_ == 0;
}

void Stopping::expect_step(int64_t micro_steps, double seconds) {
  const double micro_step = std::max(seconds, 1e-6) / static_cast<double>(micro_steps);
  micro_steps_ = micro_steps;
  agree_every_ = std::max<int64_t>(1, static_cast<int64_t>(std::min(kPromptSeconds / micro_step, 1e9)));
  set_stopping_point(seconds > kPromptSeconds && micro_steps > 1 ? "this micro-batch" : "this step");
}

bool Stopping::drops_step(int64_t done, double elapsed) {
  if (done == micro_steps_) return false;
  const bool due = ranks_.size() == 1 ? elapsed > kPromptSeconds : done % agree_every_ == 0;
  return due && agreed();
}

}  // namespace tessera
