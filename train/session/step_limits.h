// How large the loss and the gradient norm of a step may be that updates the weights.
#pragma once

#include <limits>

namespace tessera {

struct StepLimits {
  double loss = std::numeric_limits<double>::infinity();       // the mean over the loss tokens
  double grad_norm = std::numeric_limits<double>::infinity();  // before clipping

  // Below all that is finite: a step is computed, and makes no update
  static StepLimits nothing() { return {.loss = -std::numeric_limits<double>::infinity(), .grad_norm = 0}; }
};

}  // namespace tessera
