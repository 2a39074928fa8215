// The device that a plan is for: that of this machine, or one that is not present.
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
  std::string notice;  // if the device was assumed; empty otherwise
};

int64_t parse_device_memory(const std::string& size);  // of --device-memory. Error: as parse_bytes()

// The options of a plan, before anything is read. Error: no size; an arch that no GPU has.
void check_plan_options(const std::string& device_memory, int arch);

// The device that a run of `ranks` ranks would use. Without a GPU in this machine, the plan is for one if the
// user asked for it: by `arch` (compute capability times ten; 0: none is named), by a request for cuda, or by
// a memory size, as parse_bytes() reads it, without a request for cpu; "": what is free on the device.
// Error: as check_plan_options(); an arch beside a request for cpu.
PlanTarget choose_plan_target(DeviceRequest requested, int64_t ranks, const std::string& device_memory,
                              int arch);

}  // namespace tessera
