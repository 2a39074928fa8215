// A configuration as text.
#pragma once

#include <string>

#include "train/config/config.h"

namespace tessera {

// YAML with a line of documentation above every key; load_config() reads it back to the same.
std::string print_config(const Config& config);

// One line a key, "train.seed: 1", to compare configurations by.
std::string config_lines(const Config& config);

}  // namespace tessera
