// Tokens and losses between the host and the device.
#pragma once

#include <span>

#include "kernels/stream.h"

namespace tessera {

// Copies token ids to the device, as many as `to` has elements (a planned tensor takes any number). Error,
// before any kernel: another number, or an id outside the vocabulary. `what` they are: "token", "target".
void copy_ids(const Stream& stream, const char* what, std::span<const int32_t> ids, int64_t vocab_size,
              const Tensor& to);

double mean_on_host(const Stream& stream, const Tensor& values);  // of fp32 values; waits for the device

}  // namespace tessera
