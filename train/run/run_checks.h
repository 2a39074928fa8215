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
  const ModelConfig& model;  // train.init_from may have set its sizes
  const RunData& data;
  bool resuming = false;  // then a vocabulary with which the checkpoint was trained is not refused
};

// Returns notices for the user. Error: the tokenizer of the data differs from that of the weights of
// train.init_from, or validation data from that of data.train; sources have several tokenizers; the prompt
// has tokens that the model does not have.
std::vector<std::string> check_run(const RunParts& run);

// What is known about a planned run: its steps, and what check_run() says about its data if they can be read.
// A plan needs no data, so data that cannot be read are only a notice. Error: as check_run().
PlannedRun planned_run(const Config& config);

}  // namespace tessera
