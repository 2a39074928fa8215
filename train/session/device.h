// Which device a run uses, and how it is cut to fit.
#pragma once

#include <memory>
#include <string>

#include "kernels/backend.h"
#include "train/config/config.h"
#include "train/session/memory_limit.h"
#include "train/session/train_state.h"

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

ModelConfig model_config(const Config& config);
OptimizerConfig optimizer_config(const Config& config);

// The shape of the run that `config` asks for. With micro_batch 0 in the configuration, `micro_batch` if
// positive (that of a checkpoint, if the ranks can take it), else the largest that fits `limit` by plan (a
// limit that is not known: 1), up to where more does not make a step faster. Without `limit`, the present
// device's. Error: precision that the device lacks, and what choose_attention refuses.
RunShape run_shape(const Config& config, const DeviceTraits& device, int64_t micro_batch = 0);
RunShape run_shape(const Config& config, const DeviceTraits& device, int64_t micro_batch,
                   const MemoryLimit& limit);

}  // namespace tessera
