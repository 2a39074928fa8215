// The purpose of a piece of memory, named by the caller that allocates it.
#pragma once

#include <array>
#include <cstdint>

namespace tessera {

enum class MemoryTag : uint8_t {
  kWeights,
  kGradients,
  kOptimizer,
  kActivations,
  kAttention,  // what attention saves for its backward, and its scratch: the part that is O(N) or O(N^2)
  kCache,      // keys and values of texts that are being continued
  kWorkspace,
  kCommunication,
  kData,
};
inline constexpr int kMemoryTags = 9;
const char* name_of(MemoryTag tag);

using BytesByTag = std::array<int64_t, kMemoryTags>;  // indexed by MemoryTag

}  // namespace tessera
