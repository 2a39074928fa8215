// ./prove: whether flash attends as naive does, and whether the ways to train that must agree do, on the
// user's own weights, configuration and data.
#pragma once

#include <vector>

#include "train/launch/world.h"
#include "train/prove/proof.h"
#include "train/prove/prove_options.h"
#include "train/prove/step_record.h"

namespace tessera {

// Error: as find_model_folder(), load_config(); neither a model nor a configuration, or both.
ProvedModel open_proved(const ProveOptions& options);

// A checkpoint that --against names, with its own configuration. Error: as find_model_folder().
ProvedModel read_other(const std::string& name, const std::vector<std::string>& ignored_fields);

// Prints the table; rank 0 writes the file. `make` makes the backends: tests plant faults there. Error: as
// RunData and run_shape(); too little memory for one sequence.
std::vector<Proof> prove(const ProvedModel& model, const ProveOptions& options, const World& world,
                         const BackendMaker& make);

}  // namespace tessera
