// The learning rate of a step.
#pragma once

#include <string>

#include "train/config/config.h"

namespace tessera {

// `step` counts from 0. During warm-up the rate rises linearly, and reaches learning_rate with the last
// warm-up step. Without a warm-up the first step already has learning_rate. After the warm-up, with p the
// share of the remaining steps that is done:
//   constant   learning_rate
//   linear     falls to min_learning_rate in a straight line
//   cosine     falls to min_learning_rate along half a cosine; Loshchilov and Hutter, arXiv:1608.03983
//   wsd        constant, then linear to min_learning_rate over the last decay_fraction of all steps
//              (warm-up, stable, decay; Hu et al., arXiv:2404.06395)
double learning_rate_at(int64_t step, int64_t steps, const Config::Optimizer& optimizer);

// For a run of `steps` whose warm-up takes all its steps: a message with the rate that it reaches; "" for
// other runs
std::string warm_up_notice(int64_t steps, const Config::Optimizer& optimizer);

}  // namespace tessera
