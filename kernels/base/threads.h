// How many threads the CPU's operations run on.
#pragma once

#include <cstdint>

namespace tessera {

// The threads of this process: OMP_NUM_THREADS, or one for every processor. With `ranks`: the threads of each
// of this many processes that share the machine, as the launcher starts them.
int cpu_threads(int64_t ranks = 1);

}  // namespace tessera
