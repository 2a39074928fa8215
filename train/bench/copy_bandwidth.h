// The speed of a device's memory, as a copy finds it.
#pragma once

#include "kernels/base/arena.h"
#include "kernels/stream.h"

namespace tessera {

// Bytes read and written a second by the copy of a large tensor (1 GiB on CUDA); the best of several. `arena`
// is on the same device; all memory is released.
double copy_bandwidth(const Stream& stream, Arena& arena);

}  // namespace tessera
