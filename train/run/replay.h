// ./train --replay: computes the step of a bad step's folder once more.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "train/launch/world.h"
#include "train/run/bad_step_folder.h"

namespace tessera {

// The configuration of the run with the bad step, changed by `overrides` (key=value). Error: as
// load_config().
Config replay_config(const BadStepFolder& folder, const std::vector<std::string>& overrides);

// Every rank of `world` calls it; config.ranks is world.size. Looks at every operation, and prints what it
// finds on rank 0. Returns the exit code: 1 if the step is bad again, 0 if it is not. Error: a damaged
// checkpoint; a step that does not fit the device or the ranks; an error on another rank.
int replay(const Config& config, const BadStepFolder& folder, const World& world);

}  // namespace tessera
