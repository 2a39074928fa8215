// When a run stops for a signal, and that all of its ranks stop at the same place.
#pragma once

#include <functional>
#include <initializer_list>
#include <vector>

#include "train/run/rank_group.h"
#include "train/run/stop_signals.h"

namespace tessera {

// A step that is expected to take longer than kPromptSeconds is dropped when a signal comes; a shorter one is
// finished. Gradients are exchanged during a step's last micro-batch, so all ranks must know before it
// whether it is dropped. They agree after every so many micro-batches, a number that follows from what they
// know in common: that costs a message to rank 0 and back about every kPromptSeconds, no wait for a device,
// and nothing at all in a short step. A rank alone looks at the clock instead.
class Stopping {
 public:
  static constexpr double kPromptSeconds = 2;

  // `on_signal` is called once, when the ranks have agreed on a signal.
  Stopping(RankGroup& ranks, std::function<void(int)> on_signal)
      : ranks_(ranks), on_signal_(std::move(on_signal)) {}

  int signal() const { return signal_; }  // that the ranks stop for; 0: none yet

  // All ranks call these, in the same order. A signal that came to one of them counts for all.
  bool asked();
  std::vector<double> sum(std::initializer_list<double> mine);  // as RankGroup::sum(), and asks on the way

  // The next step: its micro-batches, and the seconds that it will take, the same at all ranks.
  void expect_step(int64_t micro_steps, double seconds);
  // Whether that step is dropped, `done` of its micro-batches and so many seconds after it began.
  bool drops_step(int64_t done, double elapsed);

 private:
  RankGroup& ranks_;
  std::function<void(int)> on_signal_;
  int signal_ = 0;
  int64_t micro_steps_ = 1, agree_every_ = 1;  // micro-batches
};

}  // namespace tessera
