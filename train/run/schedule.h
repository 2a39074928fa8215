// The learning rate of a step.
#pragma once

#include <string>

#include "train/config/config.h"

namespace tessera {

// `step` counts from 0. The rate rises linearly over the steps of the warm-up, and reaches learning_rate with
// the last of them; the first step without a warm-up has learning_rate, too. Then, with p the share of the
// remaining steps that is done:
//   constant   learning_rate
//   linear     falls to min_learning_rate in a straight line
//   cosine     falls to min_learning_rate along half a cosine; Loshchilov and Hutter, arXiv:1608.03983
//   wsd        constant, then linear to min_learning_rate over the last decay_fraction of all steps
//              (warm-up, stable, decay; Hu et al., arXiv:2404.06395)
double learning_rate_at(int64_t step, int64_t steps, const Config::Optimizer& optimizer);

// What a run of `steps` reaches whose warm-up takes all of them; "" if it does not.
std::string warm_up_notice(int64_t steps, const Config::Optimizer& optimizer);

}  // namespace tessera
