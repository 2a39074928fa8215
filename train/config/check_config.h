// Conditions on several keys of a configuration.
#pragma once

#include "train/config/sourced_config.h"

namespace tessera {

// A sequence length: the largest divisor of a step's `tokens` that is at most `most`
int64_t longest_divisor(int64_t tokens, int64_t most);

// Error: the first condition that does not hold, at the place of the key that was set last.
void check_across(const SourcedConfig& sourced);

// For a run that does not resume. Error: train.init_from is "required", and nobody has named a folder.
void check_init_from(const Config& config);

}  // namespace tessera
