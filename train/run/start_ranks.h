// How many processes a program runs as, and starting them.
#pragma once

#include <cstdint>

#include "train/config/config.h"
#include "train/launch/world.h"

namespace tessera {

// What the command line says: --ranks N takes GPUs where there are any, --gpus N does not do without.
struct AskedRanks {
  int64_t ranks = 0, gpus = 0;  // 0: not given; never both
  int64_t count() const { return gpus > 0 ? gpus : ranks; }
};
// Error: --gpus where device is cpu.
void check_asked(DeviceRequest device, const AskedRanks& asked);

// How many ranks a run has unless it is told: one a visible GPU, on the CPU one.
int64_t default_ranks(DeviceRequest device);

// Returns in every rank of the run, with its place in it. Where a launcher's environment describes a world,
// that is the run's; else `asked` ranks are, or, if that is 0, default_ranks(). If those are several this
// process starts them, waits for them, and exits as launch() says. Error: more ranks than GPUs, --gpus
// without a GPU, `asked` differs from the launcher's, and what world_of_environment() refuses.
World start_ranks(DeviceRequest device, const AskedRanks& asked, char** argv);

}  // namespace tessera
