// Token ids from the host to the device.
#pragma once

#include <span>

#include "kernels/stream.h"

namespace tessera {

// Copies token ids to the device, as many as `to` has elements (a planned tensor takes any number). Error,
// before any kernel: another number, or an id outside the vocabulary. `what` they are: "token", "target".
void copy_ids(const Stream& stream, const char* what, std::span<const int32_t> ids, int64_t vocab_size,
              const Tensor& to);

}  // namespace tessera
