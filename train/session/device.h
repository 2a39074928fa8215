// The choice of a device.
#pragma once

#include <memory>
#include <string>

#include "kernels/backend.h"
#include "train/config/config.h"

namespace tessera {

struct DeviceChoice {
  DeviceTraits traits;
  std::string notice;  // why auto did not choose a GPU; empty otherwise
};

// Process `local_rank` of a machine uses the GPU of that number. Error: `requested` is cuda and no GPU can be
// used, with the reason; more processes than GPUs.
DeviceChoice choose_device(DeviceRequest requested, int local_rank = 0);

// The GEMM peak: the FLOP/s of a large GEMM on this device, measured now; with `fp8`, of operands in FP8,
// which the device must support. MFU is relative to it: to the peak in FP8 where the run's GEMMs are in FP8,
// else to that in bf16 (on a CPU fp32). It allocates and releases its own memory, so call it before the run
// reserves memory. On a CPU this environment variable may give the peak, in TFLOP/s, so that short runs of
// tests need not measure it.
inline constexpr const char* kCpuPeakVariable = "TESSERA_CPU_PEAK";
double gemm_peak(Backend& be, bool fp8 = false);
constexpr const char* name_of_peak(bool fp8) { return fp8 ? "FP8 GEMM peak" : "GEMM peak"; }

std::unique_ptr<Backend> make_backend(const DeviceTraits& device);
Arena make_arena(const DeviceTraits& device);

}  // namespace tessera
