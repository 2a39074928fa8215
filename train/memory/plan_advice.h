// Changes that make a run fit, each with the memory of its own plan.
#pragma once

#include "train/memory/run_plan.h"

namespace tessera {

struct Advice {
  std::vector<std::string> switches;  // arguments of --set
  int64_t peak;                       // bytes, according to the plan
  bool fits;
  double tokens_per_second;  // estimated
  bool on_gpu;               // the estimate for a CPU is not shown, because its speed is hardly known
  int64_t host_bytes = 0;    // in the host's memory, according to the plan; 0 if `plan` fits the host
};

// Changes that need less memory than `plan`, the plan of `config`, with the same model. If what is offloaded
// does not fit the host, they offload less of it. If no single change is enough: several together, or fewer
// layers. `resuming`: only changes that a checkpoint allows.
std::vector<Advice> advice(const Config& config, const RunPlan& plan, bool resuming);

// "this run does not fit: it needs 20.1 GiB (by tag), 4.1 GiB more than ...", followed by the advice, one
// line each
std::string refusal(const Config& config, const RunPlan& plan, bool resuming);
std::string advice_text(const std::vector<Advice>& advice);

std::string describe(const MemoryLimit& limit, const DeviceTraits& device);  // "the 16.0 GiB that ..."

std::string in_shell(const std::string& word);  // in quotes if a shell needs them
// "--set a=1 --set 'data.train=x y'", for a shell
std::string set_switches(const std::vector<std::string>& switches);

}  // namespace tessera
