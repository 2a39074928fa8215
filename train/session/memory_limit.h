// The memory that a run may use: the free memory of the present device, or a size given by the user.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/base/tensor.h"

namespace tessera {

// What a process needs of a GPU's memory outside its arena: allowances, rounded up. One H200 showed 534 MiB
// with flash or naive attention, and some 0.9 GiB more with a second rank.
constexpr int64_t mebibytes(int64_t count) { return count << 20; }
inline constexpr int64_t kAllowanceCuda = mebibytes(1024);  // context, kernels, cuBLASLt, cuDNN
// The part of kAllowanceCuda that is allocated after the context
inline constexpr int64_t kAllowanceLater = mebibytes(256);
inline constexpr int64_t kAllowanceNccl = mebibytes(1280);  // NCCL's buffers and kernels, with several ranks

struct MemoryLimit {
  int64_t bytes = 0;     // that the run's arena can obtain
  int64_t total = 0;     // of the device; 0: no limit is known
  int64_t not_ours = 0;  // the allowances; they are not in `bytes`
  bool given = false;    // given by the user, not read from the device
  // Host memory that each rank can pin for its device. If not known: more than any machine has
  int64_t pinned = kUnknownPinned;
  bool pinned_given = false;  // by the user
  std::string others = {};    // what other programs hold of the GPU: see GpuUse; empty: nothing that matters

  static constexpr int64_t kUnknownPinned = int64_t{1} << 60;
  bool known() const { return total > 0; }
  bool pinned_known() const { return pinned < kUnknownPinned; }
  std::string free_text() const;  // "17.4 GiB are free", and what other programs hold
  // The limit for each of `ranks` ranks. Each rank has its own GPU; all share the machine's memory.
  MemoryLimit shared_by(Device device, int64_t ranks) const;
};

// The memory that is free now, for a run of `ranks` ranks. Not known if there is no such device. On a GPU it
// waits some seconds for the memory of programs that have just ended (train/session/gpu_users.h).
MemoryLimit present_memory(Device device, int64_t ranks = 1);
int64_t pinnable_memory(int64_t ranks);  // bytes of the host's free memory that each of `ranks` ranks can pin
MemoryLimit given_memory(Device device, int64_t total, int64_t ranks = 1);

// "80GiB", "79.6 GiB", "141GB", "80G", "85899345920". KiB to TiB, and K to T, count by 1024; KB to TB by
// 1000; without a unit, bytes. Case does not matter. Error: what was found and what is expected.
int64_t parse_bytes(std::string_view text);

}  // namespace tessera
