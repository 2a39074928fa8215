// A step whose loss or gradient norm is not finite: it is computed once more, from the same weights and the
// same sequences, while every operation is looked at.
#pragma once

#include <cstdint>
#include <string>

#include "train/run/open_run.h"

namespace tessera {

struct BadStep {
  int64_t step;
  double loss, grad_norm;  // of all ranks
  double own_loss;         // this rank's
  int64_t counted_tokens;
  double learning_rate;
};

// Computes the step again, at run.now, and says where the first bad value comes from: the text is the same on
// all ranks, which call this together. The state has to be as it was before the step, which has made no
// update; so it is afterwards.
std::string explain_bad_step(OpenRun& run, const BadStep& bad);

}  // namespace tessera
