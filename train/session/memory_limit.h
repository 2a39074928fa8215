// How much memory a run may take: what is free on the device that is present, or what a plan was told.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/base/tensor.h"

namespace tessera {

// What a process takes of a GPU beside its arena: allowances, rounded up. One H200 showed 534 MiB with flash
// or naive attention, and some 0.9 GiB more with a second rank.
inline constexpr int64_t kAllowanceCuda = int64_t{1} << 30;  // context, kernels, cuBLASLt, cuDNN
inline constexpr int64_t kAllowanceLater = int64_t{1}
                                           << 28;  // of that, what a context that is there has not yet
inline constexpr int64_t kAllowanceNccl = int64_t{5}
                                          << 28;  // buffers and kernels of NCCL, if there are ranks

struct MemoryLimit {
  int64_t bytes = 0;     // that a run's arena can obtain
  int64_t total = 0;     // of the device; 0: no limit is known
  int64_t not_ours = 0;  // the allowances, which `bytes` is without
  bool given = false;    // by the user, rather than read from the device

  bool known() const { return total > 0; }
  // What each of so many ranks may take: they have a GPU each, and the machine's memory together.
  MemoryLimit shared_by(Device device, int64_t ranks) const;
};

// What is free now, for a run of so many ranks. Not known where there is no such device.
MemoryLimit present_memory(Device device, int64_t ranks = 1);
MemoryLimit given_memory(Device device, int64_t total, int64_t ranks = 1);

// "80GiB", "79.6 GiB", "141GB", "80G", "85899345920". KiB to TiB, and K to T, count by 1024; KB to TB by
// 1000; without a unit, bytes. Case does not matter. Error: what was wanted and found.
int64_t parse_bytes(std::string_view text);

}  // namespace tessera
