// Limits of the loss and the gradient norm: a step above one of them does not update the weights.
#pragma once

#include <limits>

namespace tessera {

struct StepLimits {
  double loss = std::numeric_limits<double>::infinity();       // the mean over the loss tokens
  double grad_norm = std::numeric_limits<double>::infinity();  // before clipping

  // Limits below every finite value: a step is computed, but updates nothing
  static StepLimits nothing() { return {.loss = -std::numeric_limits<double>::infinity(), .grad_norm = 0}; }
};

}  // namespace tessera
