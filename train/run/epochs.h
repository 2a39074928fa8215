// The length of a run: train.steps, or the steps that train.epochs takes.
#pragma once

#include <string>

#include "train/config/config.h"
#include "train/run/run_state.h"

namespace tessera {

// The last step of a run with train.epochs, at `now` and with `per_epoch` training sequences. The run visits
// E x per_epoch sequences, rounded to the nearest whole number (at least 1). Steps are rounded up, so the
// last one may reach into the next epoch. What `now` has trained on counts, in steps of whatever size.
// Error: more steps than a run may have.
int64_t steps_of_epochs(const Config& config, int64_t per_epoch, const RunState& now = {});

std::string length_of(const Config& config);         // "1000 steps", "3 epochs = 1234 steps"
std::string advice_on_length(const Config& config);  // "train.steps is 1000. To continue, ..."

}  // namespace tessera
