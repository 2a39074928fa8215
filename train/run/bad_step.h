// A bad step: its loss or gradient norm is not finite, or lies far above those of the steps before. Such a
// step makes no update, so it can be looked at, and computed once more from the same weights and sequences.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/sequences.h"
#include "train/run/rank_group.h"
#include "train/run/recent_steps.h"
#include "train/session/train_state.h"

namespace tessera {

struct BadStep {
  int64_t step;
  StepVerdict verdict;
  double loss, grad_norm;  // over all ranks
  double own_loss;         // of this rank
  double counted_tokens;   // see TrainState::step()
  double learning_rate;
  StepLimits limits;                    // the limits that the step had
  SpikeScores scores = {};              // with a spike
  std::vector<std::string> worst = {};  // worst_sequences()

  bool is_spike() const { return verdict == StepVerdict::kAbove; }
  // A result that is not finite, or above the limits that the step had
  bool is_bad(const TrainState::StepResult& result) const;
  const char* kind() const { return is_spike() ? "spike" : "nonfinite"; }
  // "the loss is 9.1 and the gradient norm 3.2, with scores of 31.0 and 12.4"
  std::string figures() const;
};

// What a step is computed from
struct StepInputs {
  RankGroup& ranks;
  TrainState& state;  // as it was before the step
  SequencesView own;                   // this rank's
  std::vector<int64_t> own_positions;  // of these in the data
  int64_t position;                    // of the first sequence of all ranks
  OptimizerConfig optimizer;
  // Where the sequence at a position of the data comes from, or where one of its tokens does
  std::function<std::string(int64_t position, std::optional<int64_t> token)> origin;
};

// The sequences with the highest mean losses of the step that was computed last; those with a loss that is
// not finite come first. Each is a text: "sequence 3, at position 35 of the data, loss 7.2: text.txt, tokens
// 5 to 90". There are only a few, the same on all ranks, which call this together.
std::vector<std::string> worst_sequences(const StepInputs& inputs);

struct ComputedAgain {
  TrainState::StepResult result;  // the loss is that of all ranks
  std::string text;               // where the first bad value comes from; for a spike, whether the step is a
                                  // spike again
};
// Computes the step once more, without an update, and looks at every operation. The result is the same on all
// ranks, which call this together.
ComputedAgain compute_again(const StepInputs& inputs, const BadStep& bad);

}  // namespace tessera
