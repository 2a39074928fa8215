// How much memory a run may take: what is free on the device that is present, or what a plan was told.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/base/tensor.h"

namespace tessera {

// Of a GPU's memory that is given as a whole, what the CUDA context, the loaded kernels and the handles of
// cuBLASLt and cuDNN may take. An allowance, not a measurement. What a GPU that is present has free does not
// hold its context.
inline constexpr int64_t kAllowanceCuda = int64_t{1} << 30;
inline constexpr const char* kAllowanceCudaName = "CUDA context, kernels, cuBLASLt, cuDNN";

struct MemoryLimit {
  int64_t bytes = 0;     // that a run's arena can obtain
  int64_t total = 0;     // of the device; 0: no limit is known
  int64_t not_ours = 0;  // of the total, left to others; 0 where `bytes` was read from the device
  bool given = false;    // by the user, rather than read from the device

  bool known() const { return total > 0; }
  // What each of so many ranks may take: they have a GPU each, and the machine's memory together.
  MemoryLimit shared_by(Device device, int64_t ranks) const;
};

// What is free now. Not known where there is no such device.
MemoryLimit present_memory(Device device);
MemoryLimit given_memory(Device device, int64_t total);

// "80GiB", "79.6 GiB", "141GB", "80G", "85899345920". KiB to TiB, and K to T, count by 1024; KB to TB by
// 1000; without a unit, bytes. Case does not matter. Error: what was wanted and found.
int64_t parse_bytes(std::string_view text);

}  // namespace tessera
