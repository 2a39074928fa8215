// Tile sizes of our GEMMs for compute capability 9.0. Plain C++.
#pragma once

#include <cstdint>

#include "kernels/hopper/sizes.h"

namespace tessera::gemm {

using namespace hopper;

inline constexpr int kBlockK = kPanel;  // of the summed dimension, in a slot of the ring

inline constexpr int kTileRows = 128, kTileColumns = 192;  // of a consumer: 192 sums a thread
inline constexpr int kCluster = 2;  // CTAs with tiles one below the other: b is loaded once for both
inline constexpr int kSlots = 4;

inline constexpr int kConsumers = 2;  // warpgroups that multiply; one more loads
inline constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
inline constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;

inline constexpr int kABytes = kTileRows * kBlockK * 2, kBBytes = kTileColumns * kBlockK * 2;
inline constexpr int kSlotBytes = kABytes + kBBytes;
// Buffers of a consumer, each a panel of its tile: operands and results of the epilogue
inline constexpr int kBuffers = 2, kBufferBytes = kTileRows * kPanel * 2;
inline constexpr int kScratchBytes = 4 * kPanel * 4;  // of a consumer: the column sums of a panel by each of
                                                      // its warps
inline constexpr int kBarrierBytes = (2 * kSlots + kBuffers * kConsumers) * 8;
inline constexpr int kSharedBytes = kSlots * kSlotBytes +
                                    kConsumers * (kBuffers * kBufferBytes + kScratchBytes) + kBarrierBytes +
                                    kConsumers * 4;  // see Memory::largest()
static_assert(kSharedBytes <= kSharedBytesOfCta);

inline constexpr int64_t kAlignment = 16;  // bytes, required by TMA
inline bool is_aligned(const void* data, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes) == 0;
}

}  // namespace tessera::gemm
