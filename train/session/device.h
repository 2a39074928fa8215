// Which device a run uses.
#pragma once

#include <memory>
#include <string>

#include "kernels/backend.h"
#include "train/config/config.h"

namespace tessera {

struct DeviceChoice {
  DeviceTraits traits;
  std::string notice;  // why auto did not take a GPU; empty otherwise
};

// The process `local_rank` of a machine takes the GPU of that number.
// Error: cuda where none can be used, with the reason; more processes than GPUs.
DeviceChoice choose_device(DeviceRequest requested, int local_rank = 0);

// FLOP/s of a large matrix product on this device, measured now: what a share of the peak is a share of.
// Takes and gives back memory of its own, so call it before the run's is reserved; the backend must be lent a
// workspace afterwards.
double gemm_peak(Backend& be);

std::unique_ptr<Backend> make_backend(const DeviceTraits& device);
Arena make_arena(const DeviceTraits& device);

}  // namespace tessera
