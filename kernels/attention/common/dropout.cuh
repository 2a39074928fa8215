// Dropout on accumulators of wgmma, packed in pairs: a thread holds columns 8n + 2 (lane % 4) + {0, 1} of
// rows lane / 4 + 8r of 16, as pair 2n + r. The lanes of a warp share the drawing, a unit each
// (kernels/base/dropout.h), and exchange words that have a bit an element.
#pragma once

#include "kernels/base/dropout.h"
#include "kernels/base/ptx.cuh"

namespace tessera::attention {

// 0xffff in each half whose element is kept. `low` and `high` have the bit of the first and of the second
// element in the highest place of byte `byte`.
__device__ __forceinline__ uint32_t pair_mask(uint32_t low, uint32_t high, uint32_t byte) {
  const uint32_t first = 8 | byte, second = 8 | 4 | byte;
  return ptx::permute_bytes(low, high, first | first << 4 | second << 8 | second << 12);
}

// Rows are 16 queries, columns kKeys keys from a multiple of 16 on. The four lanes of a row, and of the
// row 8 below, draw the units of both: unit u of them is drawn by lane u % 4, as half u / 4 % 2 of its
// word u / 8.
template <int kKeys>
struct QueryMasks {
  static constexpr int kUnits = kKeys / Dropout::kUnit;  // of a row
  static constexpr int kDraws = (2 * kUnits + 3) / 4, kWords = (kDraws + 1) / 2;
  static_assert(kKeys % Dropout::kUnit == 0);

  uint32_t words[kWords];

  // `query` is that of the lane's first row.
  __device__ __forceinline__ void draw(const DropoutMask& mask, int batch, int head, int query,
                                       int first_key) {
    const auto drawn = [&](int i) {
      const int u = 4 * i + static_cast<int>(threadIdx.x) % 4, r = u >= kUnits ? 1 : 0;
      return mask.draw(batch, head, query + 8 * r, first_key / Dropout::kUnit + u - r * kUnits);
    };
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const Philox::Words first = drawn(2 * w);
      words[w] = mask.kept(first, 2 * w + 1 < kDraws ? drawn(2 * w + 1) : first);
    }
  }
  // Dropped probabilities become 0.
  __device__ __forceinline__ void drop(uint32_t (&p)[kKeys / 4]) const {
    const int shift = 6 - static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
#pragma unroll
      for (int lane = 0; lane < 4; ++lane) {
        const uint32_t word = __shfl_sync(~0u, words[w], lane, 4);
        const uint32_t low = word << (shift + 1), high = word << shift;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int u = 8 * w + 4 * half + lane, r = u / kUnits, n = u % kUnits * 2;
          if (u >= 2 * kUnits) continue;
          p[2 * n + r] &= pair_mask(low, high, 2 * half);
          p[2 * n + 2 + r] &= pair_mask(low, high, 2 * half + 1);
        }
      }
    }
  }
};

// Dropping a probability in bf16 so that it can be brought back: the second highest bit of the exponent is
// set in all from 2^-63 to 2, and clearing it divides by 2^64. Smaller ones have to be raised to 2^-63
// first, or they would come back as others.
inline constexpr uint32_t kDropBit = 0x2000;
inline constexpr uint32_t kDropBits =
    kDropBit << 16 | kDropBit;  // of a pair, which as numbers are both 2^-63
__device__ __forceinline__ float before_drop(float p) {
  return __uint_as_float(__float_as_uint(p) | kDropBit << 16);
}

// Masks of transposed scores: rows are 16 keys from a multiple of 16 on, columns kQueries queries. A word
// of a lane has what it holds of 64 queries: bit 16 h + 8 r + 2 n + e of column 32 h + 8 n + 2 (lane % 4)
// + e and row 8 r + lane / 4.
//
// A lane draws the bits of 16 keys for two queries; then three exchanges between lanes turn bits of keys
// into bits of queries. With the lane's number made of the bits q4 q3 q0 q2 q1 of its query, and the place
// in a word of h k3 k2 k1 k0 (query 32 h + q, key k), they swap q4 with k2, q3 with k1 and q0 with k0.
template <int kQueries>
struct KeyMasks {
  static constexpr int kWords = kQueries / 64;
  static_assert(kQueries % 64 == 0);

  uint32_t words[kWords];

  __device__ __forceinline__ void draw(const DropoutMask& mask, int batch, int head, int first_query,
                                       int first_key) {
    const uint32_t lane = threadIdx.x % 32, unit = static_cast<uint32_t>(first_key) / Dropout::kUnit;
    const uint32_t query = first_query + (lane & 24) + (lane >> 2 & 1) + (lane & 3) * 2;
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      words[w] = mask.kept(mask.draw(batch, head, query + 64 * w, unit),
                           mask.draw(batch, head, query + 64 * w + 32, unit));
      exchange<16, 4>(words[w], 0x0f0f0f0f);
      exchange<8, 2>(words[w], 0x33333333);
      exchange<4, 1>(words[w], 0x55555555);
    }
  }
  // Dropped probabilities become smaller by 2^64, which no product notices; before_drop() brings them back.
  __device__ __forceinline__ void drop(uint32_t (&p)[kQueries / 4]) const {
#pragma unroll
    for (int n = 0; n < kQueries / 8; ++n) {
      const uint32_t word = words[n / 8];
      const int h = n / 4 % 2, bit = n % 4 * 2;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        uint32_t& two = p[2 * n + r];
        two = ptx::max_bf16(two, kDropBits) &
              (pair_mask(word << (7 - bit), word << (6 - bit), 2 * h + r) | ~kDropBits);
      }
    }
  }

 private:
  // Swaps bit kLane of the lane's number with the bit of a word's places that is not set in those of `low`.
  template <int kLane, int kPlaces>
  static __device__ __forceinline__ void exchange(uint32_t& word, uint32_t low) {
    const bool upper = threadIdx.x & kLane;
    const uint32_t other = __shfl_xor_sync(~0u, word, kLane);
    const uint32_t stays = upper ? ~low : low;
    // Rotated: no bit that crosses the end is used.
    const uint32_t moved = __funnelshift_l(other, other, upper ? 32 - kPlaces : kPlaces);
    word = (word & stays) | (moved & ~stays);
  }
};

}  // namespace tessera::attention
