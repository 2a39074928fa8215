// What differs between a checkpoint and the run that resumes from it: refusals, and what the user is told.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "train/config/config.h"
#include "train/run/run_state.h"

namespace tessera {

// Compares the run with the checkpoint that it resumes from, whose state is `was`. Returns what to tell the
// user: keys that changed, with their values before and now and what that means; what could not be compared.
// Error: the order of the training data would change: another seed, sequence length or data.shuffle, or other
// data.
std::vector<std::string> compare_with_checkpoint(const std::filesystem::path& checkpoint, const RunState& was,
                                                 const RunState& now, const Config& config);

// The best evaluation up to the checkpoint. None where its loss does not compare with those of this run, or
// where the run keeps the best checkpoint and that one is gone.
std::optional<BestEvaluation> best_so_far(const std::filesystem::path& checkpoint, const RunState& was,
                                          const RunState& now, const Config& config);

}  // namespace tessera
