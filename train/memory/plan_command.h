// ./train --plan: the memory of a run, without running it and without its device.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "train/config/config.h"
#include "train/memory/plan_target.h"

namespace tessera {

enum class FitSearch : uint8_t { kNone, kContext, kBatch };
constexpr auto words_of(FitSearch) {  // of --fit
  return std::array{Word{"context", FitSearch::kContext}, Word{"batch", FitSearch::kBatch}};
}

// What a run would know at its start, besides its memory
struct PlannedRun {
  std::optional<int64_t> steps;      // for train.epochs they are known only if the data can be read
  std::vector<std::string> notices;  // notices that the run would print
  bool weights = false;              // whether its data has weights of losses
};

struct PlanOptions {
  std::string config_name;  // both as the user wrote them, for the printed commands
  std::vector<std::string> overrides;
  TargetOptions target;
  FitSearch fit = FitSearch::kNone;
  std::function<PlannedRun(const Config&)> planned_run = {};  // Error: the run would be refused
  std::string json;                                           // file to write; empty: none
};

inline constexpr int kExitDoesNotFit = 2;

// Prints the plan. Returns 0 if it fits or if no limit is known, else kExitDoesNotFit. Error: as
// load_config(), run_shape() and parse_bytes().
int plan_command(const Config& config, const PlanOptions& options);

}  // namespace tessera
