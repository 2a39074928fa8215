// The speed of a device's memory, measured with a copy
#pragma once

#include "kernels/base/arena.h"
#include "kernels/stream.h"

namespace tessera {

// The bytes per second that are read and written while a large tensor (1 GiB on CUDA) is copied; the best of
// several copies. `arena` is on the same device; all memory is released.
double copy_bandwidth(const Stream& stream, Arena& arena);

}  // namespace tessera
