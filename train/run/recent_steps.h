// Spikes: steps whose loss or gradient norm lies far above those of the steps before.
//
// The score of a value x is its robust z-score in the window of the recent good steps (Iglewicz and Hoaglin,
// How to Detect and Handle Outliers, 1993):
//
//   (x - median) / max(1.4826 MAD, kFlat |median|)
//
// MAD, the median of the distances from the median, times 1.4826 is the standard deviation of values that are
// normally distributed; a spike in the window, unlike with mean and deviation, hardly moves either. The
// second term is for windows that are flat.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "train/session/step_limits.h"

namespace tessera {

// The newest steps that updated the weights
struct RecentSteps {
  static constexpr size_t kMost = 128, kLeast = 32;  // of the window; before kLeast there is no score
  static constexpr double kFlat = 0.005;             // of the median
  int64_t tokens_per_step = 0;                       // of them all
  std::vector<double> losses = {}, grad_norms = {};  // the newest last

  void add(double loss, double grad_norm);
  bool operator==(const RecentSteps&) const = default;
};

struct SpikeScores {
  double loss = 0, grad_norm = 0;  // 0: there are too few steps before
};
SpikeScores scores_of(const RecentSteps& recent, double loss, double grad_norm);

// What has just `score`
StepLimits limits_of(const RecentSteps& recent, double score);

}  // namespace tessera
