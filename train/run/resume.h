// The differences between a checkpoint and the run that resumes from it: some make resuming an Error, others
// only cause a notice.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "train/config/config.h"
#include "train/run/run_data.h"
#include "train/run/run_state.h"

namespace tessera {

// Compares the run with the checkpoint that it resumes from, whose state is `was`. Returns notices: keys that
// changed, with both values and the effect; and what could not be compared. Error: the order of the training
// data would change. This happens with another seed, data.shuffle, data.documents or data.shift, with other
// data or other weights of its sources, and with a sequence length that train.context_schedule does not have
// at this step.
std::vector<std::string> compare_with_checkpoint(const std::filesystem::path& checkpoint, const RunState& was,
                                                 const RunState& now, const Config& config,
                                                 const RunData& data);

// Sets the best evaluation of `now`, and the number of evaluations since, to those of the checkpoint. They
// start anew if losses of this run cannot be compared with the earlier ones, if the run keeps the best
// checkpoint and that checkpoint no longer exists, or if a phase of train.context_schedule begins.
void take_best(const std::filesystem::path& checkpoint, const RunState& was, RunState& now,
               const Config& config);

}  // namespace tessera
