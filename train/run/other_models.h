// The models beside the one that trains: the reference of a loss of pairs, and the teacher of a distillation;
// or what they computed, stored beside the data.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "train/run/rank_group.h"
#include "train/run/run_phase.h"
#include "train/run/run_state.h"

namespace tessera {

class OtherModels {
 public:
  // `resumed`: the checkpoint that the run resumes from; empty: a new run. All outlive this object.
  OtherModels(const Config& config, RankGroup& ranks, const std::filesystem::path& resumed)
      : config_(config), ranks_(ranks), resumed_(resumed) {}

  // Before anything slow. Returns what the run says about their folders. Error: a folder is missing, or does
  // not have such a model.
  std::vector<std::string> check_folders() const;
  // Loads those that the phase has memory for. `now` gets the checksum of each. With `at_start` the run has
  // no checkpoint yet, and what is stored beside the data is compared with the folder of the model that
  // computed it. Error: they are not those of `was`, the checkpoint's state; what is stored is of another.
  void load(RunPhase& phase, const RunState& was, RunState& now, bool at_start) const;
  // What adapters belong to is read anyway. `base`: its checksum. Error: what is stored is of another
  // reference, and the reference is this base.
  void check_base(const RunData& data, const std::string& base) const;

 private:
  bool reference_is_base() const;
  std::string same_as_before(const char* what, const std::string& was, const std::string& now) const;
  void check_stored_reference(const RunData& data, const std::string& found) const;
  std::string stored_reference(const RunData& data, bool at_start) const;
  std::string stored_teacher(const RunData& data, bool at_start) const;

  const Config& config_;
  RankGroup& ranks_;
  const std::filesystem::path& resumed_;
};

}  // namespace tessera
