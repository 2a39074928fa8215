// What differs between a checkpoint and the run that resumes from it: refusals, and what the user is told.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "train/config/config.h"
#include "train/run_state.h"

namespace tessera {

// Error: the order of the training data would change: another seed, sequence length or data.shuffle, or other
// data. `was` is the checkpoint's, `was_config` its configuration, if it has one. Returns notices.
std::vector<std::string> check_same_data(const std::filesystem::path& checkpoint, const RunState& was,
                                         const RunState& now, const std::optional<Config>& was_config,
                                         const Config& config);

// Whether both evaluate on the same tokens, so that their losses compare.
bool same_validation(const RunState& was, const RunState& now);

// The configuration that a checkpoint holds; nothing where it has none, or one that this version cannot read,
// which `notice` then says.
std::optional<Config> config_of(const std::filesystem::path& checkpoint, std::string& notice);

// A line for every key that changed, with its values before and now and what that means; one for the learning
// rate, if they change it. `step` is the checkpoint's.
std::vector<std::string> changes(const Config& was, const Config& now, int64_t step);

}  // namespace tessera
