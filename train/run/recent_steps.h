// Spikes: steps whose loss or gradient norm lies far above those of the steps before.
//
// The score of a value x is its robust z-score in the window of the recent good steps (Iglewicz and Hoaglin,
// How to Detect and Handle Outliers, 1993):
//
//   (x - median) / max(1.4826 MAD, kFlat |median|)
//
// MAD is the median of the distances from the median. Times 1.4826 it is the standard deviation, for values
// that are normally distributed. Unlike the mean and the standard deviation, the median and the MAD hardly
// move when the window contains a spike. The second term is for windows of almost equal values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "train/session/step_limits.h"

namespace tessera {

// The newest steps that updated the weights
struct RecentSteps {
  static constexpr size_t kMost = 128, kLeast = 32;  // of the window; with fewer than kLeast steps there is
                                                     // no score
  static constexpr double kFlat = 0.005;             // of the median
  int64_t tokens_per_step = 0;                       // of all these steps
  std::vector<double> losses = {}, grad_norms = {};  // the newest are last

  void add(double loss, double grad_norm);
  bool operator==(const RecentSteps&) const = default;
};

struct SpikeScores {
  double loss = 0, grad_norm = 0;  // 0: there were too few steps before
};
SpikeScores scores_of(const RecentSteps& recent, double loss, double grad_norm);

// The limits at which the loss and the gradient norm just have `score`
StepLimits limits_of(const RecentSteps& recent, double score);

}  // namespace tessera
