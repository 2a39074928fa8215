// The loss of a step, or of an evaluation, as one number.
#pragma once

#include <vector>

#include "kernels/stream.h"

namespace tessera {

// fp32 losses on the host. Waits for the device.
std::vector<float> host_losses(const Stream& stream, const Tensor& losses);
double mean_of(const std::vector<float>& losses);  // summed in fp64 in their order

// The mean of fp32 losses, one a token, summed on the host in fp64 in their order. Waits for the device.
double mean_loss(const Stream& stream, const Tensor& losses);

}  // namespace tessera
