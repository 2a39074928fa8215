// Changes that make a run fit, each with the memory of its own plan.
#pragma once

#include "train/memory/run_plan.h"

namespace tessera {

struct Advice {
  std::vector<std::string> switches;  // for --set
  int64_t peak;                       // bytes, by plan
  bool fits;
  double tokens_per_second;  // estimated
  bool on_gpu;               // the estimate of a CPU is not shown: its speed is hardly known
  int64_t host_bytes = 0;    // in the host's memory, by plan; 0 where `plan` fits that
};

// Changes that need less memory than `plan`, the plan of `config`, with the same model; where what is
// offloaded does not fit the host, less of that. If no single one is
// enough: several together, or fewer layers. `resuming`: only changes that a checkpoint allows.
std::vector<Advice> advice(const Config& config, const RunPlan& plan, bool resuming);

// "this run does not fit: it needs 20.1 GiB (by tag), 4.1 GiB more than ...", and the advice line by line
std::string refusal(const Config& config, const RunPlan& plan, bool resuming);
std::string advice_text(const std::vector<Advice>& advice);

std::string describe(const MemoryLimit& limit, const DeviceTraits& device);  // "the 16.0 GiB that ..."

std::string in_shell(const std::string& word);  // quoted if a shell needs it
// "--set a=1 --set 'data.train=x y'", for a shell
std::string set_switches(const std::vector<std::string>& switches);

}  // namespace tessera
