// When a run stops for a signal: all ranks at the same place.
#pragma once

#include <functional>
#include <vector>

#include "train/run/rank_group.h"

namespace tessera {

// A step that is expected to take longer than kPromptSeconds is dropped when a signal arrives; a shorter one
// is finished. Gradients are exchanged during a step's last micro-batch, so all ranks must know before it
// whether the step is dropped. They agree after every agree_every_ micro-batches, which all ranks compute
// from the same values: that costs a message to rank 0 and back about every kPromptSeconds, no wait for a
// device, and nothing in a short step. A single rank looks at the clock instead.
//
// What a run does between steps goes by rounds: the batches of an evaluation, the tokens of a sample. Ranks
// agree before each, which costs that message every time; a single rank sends none.
class Stopping {
 public:
  static constexpr double kPromptSeconds = 2;

  // `on_signal` is called once, when the ranks have agreed on a signal.
  explicit Stopping(RankGroup& ranks, std::function<void(int)> on_signal = {})
      : ranks_(ranks), on_signal_(std::move(on_signal)) {}

  RankGroup& ranks() const { return ranks_; }
  int signal() const { return signal_; }  // the one that stops the run; 0: none yet

  // All ranks call these, in the same order. A signal to one of them counts for all.
  bool agreed();
  std::vector<double> sum(std::vector<double> mine);  // RankGroup::sum(), and agreed() in the same exchange
  // Whether there is another round: after no signal, and only as long as rank 0 does not say `done`.
  bool goes_on(bool done = false);

  // The next step: its micro-batches and its expected seconds, the same at all ranks.
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
