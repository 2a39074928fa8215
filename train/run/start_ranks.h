// How many ranks a program has, and how they are started
#pragma once

#include <cstdint>

#include "train/config/config.h"
#include "train/launch/world.h"

namespace tessera {

// From the command line: --ranks N uses GPUs if there are any; --gpus N requires them.
struct AskedRanks {
  int64_t ranks = 0, gpus = 0;              // 0: not given; never both
  const char* on_cpu = "--set device=cpu";  // how to tell this program to use the CPU
  int64_t count() const { return gpus > 0 ? gpus : ranks; }
};
// Error: --gpus with device cpu.
void check_asked(DeviceRequest device, const AskedRanks& asked);

// The number of ranks if none is given: one for each visible GPU; on the CPU one.
int64_t default_ranks(DeviceRequest device);

// Returns in every rank of the run. If a launcher's environment describes a world, the run is that world.
// Otherwise it has `asked` ranks, or default_ranks() if the user gave no number. If there are several, this
// process starts them, waits for them, and exits with launch()'s code. Error: more ranks than GPUs; --gpus
// without a GPU; `asked` differs from the launcher's number; or as world_of_environment().
World start_ranks(DeviceRequest device, const AskedRanks& asked, char** argv);

}  // namespace tessera
