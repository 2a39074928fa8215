// The loss of a step, or of an evaluation, as one number.
#pragma once

#include <span>
#include <vector>

#include "kernels/stream.h"

namespace tessera {

// fp32 losses on the host. Waits for the device.
std::vector<float> host_losses(const Stream& stream, const Tensor& losses);

// The sum of losses, in fp64 in their order, over the number of tokens that count; 0 if none does
double mean_loss(std::span<const float> losses, double counted);

}  // namespace tessera
