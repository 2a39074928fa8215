// Conditions on several keys of a model.
#pragma once

#include "train/config/sourced_config.h"

namespace tessera {

// Error: the first condition that does not hold, at the place of the key that was set last.
void check_model(const SourcedConfig& sourced);

}  // namespace tessera
