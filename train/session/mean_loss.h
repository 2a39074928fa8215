// The loss of a step, or of an evaluation, as one number.
#pragma once

#include "kernels/stream.h"

namespace tessera {

// The mean of fp32 losses, one a token, summed on the host in fp64 in their order. Waits for the device.
double mean_loss(const Stream& stream, const Tensor& losses);

}  // namespace tessera
