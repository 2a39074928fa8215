// When a run stops for a signal: all ranks at the same place.
#pragma once

#include <functional>
#include <vector>

#include "train/run/rank_group.h"

namespace tessera {

// A step that is expected to take longer than kPromptSeconds is dropped when a signal arrives; a shorter one
// is finished. A step's last micro-batch exchanges gradients, so before it all ranks must know whether the
// step is dropped. They agree after every agree_every_ micro-batches, a number that all ranks compute from
// the same values. This costs a message to rank 0 and back about every kPromptSeconds, never waits for a
// device, and costs nothing in a short step. A single rank looks at the clock instead.
//
// Work between steps is done in rounds: the batches of an evaluation, the tokens of a sample. The ranks agree
// before each round, which costs such a message every time. A single rank sends none.
class Stopping {
 public:
  static constexpr double kPromptSeconds = 2;

  // `on_signal` is called once, when the ranks have agreed on a signal.
  explicit Stopping(RankGroup& ranks, std::function<void(int)> on_signal = {})
      : ranks_(ranks), on_signal_(std::move(on_signal)) {}

  RankGroup& ranks() const { return ranks_; }
  int signal() const { return signal_; }  // the signal that stops the run; 0: none yet

  // All ranks call these, in the same order. A signal to one of them counts for all.
  bool agreed();
  std::vector<double> sum(std::vector<double> mine);  // RankGroup::sum(), and agreed() in the same exchange
  // Whether there is another round: no signal has arrived, and rank 0 has not said `done`.
  bool goes_on(bool done = false);

  // Announces the next step: its micro-batches and its expected seconds, which are equal on all ranks.
  void expect_step(int64_t micro_steps, double seconds);
  // Whether that step is dropped, after `done` of its micro-batches and `elapsed` seconds.
  bool drops_step(int64_t done, double elapsed);

 private:
  RankGroup& ranks_;
  std::function<void(int)> on_signal_;
  int signal_ = 0;
  int64_t micro_steps_ = 1, agree_every_ = 1;  // micro-batches
};

}  // namespace tessera
