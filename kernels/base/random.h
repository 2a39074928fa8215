// Philox4x32: random numbers as a function of (seed, stream, index), so that a resume needs no stored
// state and any rank can draw any part. Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC
// 2011: 10 rounds are the standard, 7 are the fewest that pass every test of BigCrush.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/base/host_device.h"

namespace tessera {

class Philox {
 public:
  struct Words {
    uint32_t words[4];
    TESSERA_HOST_DEVICE uint32_t operator[](int i) const { return words[i]; }
    bool operator==(const Words&) const = default;
  };

  TESSERA_HOST_DEVICE Philox(uint64_t seed, uint64_t stream) : seed_(seed), stream_(stream) {}

  // The keys of the rounds
  template <int kRounds>
  struct Keys {
    uint32_t keys[kRounds][2];

    TESSERA_HOST_DEVICE explicit Keys(uint64_t seed) {
      uint32_t first = static_cast<uint32_t>(seed), second = static_cast<uint32_t>(seed >> 32);
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
      for (auto& key : keys) {
        key[0] = first, key[1] = second;
        first += 0x9E3779B9, second += 0xBB67AE85;
      }
    }
    TESSERA_HOST_DEVICE Words bits(Words counter) const {
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
      for (const auto& key : keys) {
        const Words c = counter;
        const uint64_t a = uint64_t{0xD2511F53} * c[0], b = uint64_t{0xCD9E8D57} * c[2];
        counter = {{static_cast<uint32_t>(b >> 32) ^ c[1] ^ key[0], static_cast<uint32_t>(b),
                    static_cast<uint32_t>(a >> 32) ^ c[3] ^ key[1], static_cast<uint32_t>(a)}};
      }
      return counter;
    }
  };

  template <int kRounds = 10>
  TESSERA_HOST_DEVICE Words bits(uint64_t index) const {
    return Keys<kRounds>(seed_).bits(
        {{static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), static_cast<uint32_t>(stream_),
          static_cast<uint32_t>(stream_ >> 32)}});
  }

  // Uniform in (0, 1), 53 bits.
  double uniform(uint64_t index) const {
    const auto b = bits(index);
    const uint64_t mantissa = (uint64_t{b[0]} << 21) | (b[1] >> 11);
    return (static_cast<double>(mantissa) + 0.5) * 0x1p-53;
  }

  // Standard normal, by Box and Muller's transform of two uniforms of 32 bits.
  TESSERA_HOST_DEVICE double normal(uint64_t index) const {
    const auto b = bits(index);
    const double radius = std::sqrt(-2.0 * std::log((b[0] + 0.5) * 0x1p-32));
    return radius * std::cos(2.0 * 3.14159265358979323846 * (b[1] + 0.5) * 0x1p-32);
  }

 private:
  uint64_t seed_, stream_;
};

}  // namespace tessera
