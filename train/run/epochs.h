// The length of a run: train.steps, or the steps that train.epochs takes.
#pragma once

#include <string>

#include "train/config/config.h"
#include "train/run/run_state.h"

namespace tessera {

// The last step of a run with train.epochs that is at `now`, with `per_epoch` training sequences. The run
// visits E x per_epoch sequences, rounded to the nearest whole number (at least 1). Steps are rounded up, so
// the last step may reach into the next epoch. Sequences that `now` has already trained on count, whatever
// the size of their steps was. Error: more steps than a run may have.
int64_t steps_of_epochs(const Config& config, int64_t per_epoch, const RunState& now = {});

std::string length_of(const Config& config);         // "1000 steps", "3 epochs = 1234 steps"
std::string advice_on_length(const Config& config);  // "train.steps is 1000. To continue, ..."

}  // namespace tessera
