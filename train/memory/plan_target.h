// The device that a plan is for: this machine's, or one that is not present.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/backend.h"
#include "train/config/config.h"
#include "train/session/memory_limit.h"

namespace tessera {

struct PlanTarget {
  DeviceTraits device;
  MemoryLimit limit;   // of each rank
  std::string notice;  // a notice if the device was assumed; empty otherwise
};

int64_t parse_device_memory(const std::string& size);  // of --device-memory. Error: as parse_bytes()

// What the user says about the machine that a plan is for
struct TargetOptions {
  std::string device_memory = {};  // "80GiB", of each device; empty: what is free on this machine's device
  int arch = 0;                    // compute capability times ten, of any GPU; 0: none was named
  // "512GiB": the memory of the host that all ranks together can pin. Empty: what is free on this machine; if
  // device_memory is given, more than any machine has
  std::string host_memory = {};
};

// Checks the options of a plan, before anything is read. Error: not a size of memory; an arch that no GPU
// has.
void check_plan_options(const TargetOptions& options);

// The device that a run of `ranks` ranks would use. If this machine has no GPU, the plan is for a GPU only if
// the user asked for one: by an arch, by a request for cuda, or by a memory size without a request for cpu.
// Error: as check_plan_options(); an arch or a size of the host's memory, although the plan is for the CPU.
PlanTarget choose_plan_target(DeviceRequest requested, int64_t ranks, const TargetOptions& options);

}  // namespace tessera
