// ./train --plan: the memory of a run, without running it and without its device.
#pragma once

#include <string>
#include <vector>

#include "train/config/config.h"

namespace tessera {

struct PlanOptions {
  std::string config_name;  // as the user wrote them, for the command line to copy
  std::vector<std::string> overrides;
  std::string device_memory;  // "80GiB"; empty: what is free on the device that is present
  int arch = 0;      // compute capability times ten of a GPU that need not be present; 0: see the .cpp
  std::string fit;   // "context", "batch" or empty
  std::string json;  // file to write; empty: none
};

inline constexpr int kExitDoesNotFit = 2;

// Prints the plan. Returns 0 if it fits or no limit is known, else kExitDoesNotFit. Error: as load_config(),
// run_shape() and parse_bytes().
int plan_command(const Config& config, const PlanOptions& options);

}  // namespace tessera
