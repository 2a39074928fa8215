// Checks that a run's data, model and prompt agree, before anything slow is done.
#pragma once

#include <string>
#include <vector>

#include "model/config.h"
#include "train/config/config.h"
#include "train/memory/plan_command.h"
#include "train/run/run_data.h"

namespace tessera {

struct RunParts {
  const Config& config;
  const ModelConfig& model;  // train.init_from may set its sizes
  const RunData& data;
  bool resuming = false;  // a vocabulary that the checkpoint was trained with is not refused
};

// Returns notices for the user. Error: data of another tokenizer than that of the weights of train.init_from,
// or of data.train's; sources of several tokenizers; a prompt with tokens that the model does not have.
std::vector<std::string> check_run(const RunParts& run);

// What is known of a planned run: its steps, and what check_run() says of its data if they can be read. A
// plan may be made without them, so that data that cannot be read is a notice. Error: as check_run().
PlannedRun planned_run(const Config& config);

}  // namespace tessera
