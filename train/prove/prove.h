// ./prove: checks on the user's own weights, configuration and data whether flash attention agrees with naive
// attention, and whether the ways to train that must agree do.
#pragma once

#include <vector>

#include "train/launch/world.h"
#include "train/prove/proof.h"
#include "train/prove/prove_options.h"
#include "train/prove/step_record.h"

namespace tessera {

// Error: as find_model_folder() and load_config(); neither a model nor a configuration was given, or both
// were.
ProvedModel open_proved(const ProveOptions& options);

// Opens a checkpoint that --against names, with its own configuration. Error: as find_model_folder().
ProvedModel read_other(const std::string& name, const std::vector<std::string>& ignored_fields);

// Prints the table; rank 0 writes the file. `make` makes the backends, so that tests can add faults to them.
// Error: as RunData and run_shape(); there is too little memory for one sequence.
std::vector<Proof> prove(const ProvedModel& model, const ProveOptions& options, const World& world,
                         const BackendMaker& make);

}  // namespace tessera
