// Dropout of a warp's tile of scores in mma layout (fragment.cuh). A unit, 16 keys of a query, lies with
// several lanes: each of them draws some of the units that they share, two at a time, and the lanes exchange
// the kept bits by shuffles.
#pragma once

#include "kernels/attention/common/view.h"
#include "kernels/attention/sm80/fragment.cuh"
#include "kernels/attention/sm80/mask.cuh"

namespace tessera::attention::sm80 {

// Rows are queries, columns keys: the four lanes of a row share its units. `query` and `key` are those of
// element (0, 0); multiples of 16.
template <int kM, int kN, MaskKind kMask>
__device__ __forceinline__ void drop(Accumulator<kM, kN>& p, const DropoutMask& dropout,
                                     const KernelMask<kMask>& mask, int b, int h, int query, int key) {
  constexpr int kUnits = kN / Dropout::kUnit, kItems = kM / 8 * kUnits;  // an item: a unit of a row
  const int lane = threadIdx.x % 32, member = lane % 4;
  const auto draw = [&](int item) {
    return dropout.draw(b, h, mask.token_of(query + item / kUnits * 8 + lane / 4),
                        key / Dropout::kUnit + item % kUnits);
  };
#pragma unroll
  for (int first = 0; first < kItems; first += 8) {
    const bool two = first + 4 < kItems;
    const Philox::Words words = draw(first + member);
    const uint32_t drawn = dropout.kept(words, two ? draw(first + 4 + member) : words);
#pragma unroll
    for (int owner = 0; owner < 4; ++owner) {
      const uint32_t kept = __shfl_sync(~0u, drawn, owner, 4) >> 2 * member;
#pragma unroll
      for (int half = 0; half < (two ? 2 : 1); ++half) {
        const int item = first + 4 * half + owner, row = item / kUnits, unit = item % kUnits;
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // columns 2 member, + 1, + 8, + 9 of the unit
          if (!(kept >> (16 * half + i / 2 * 8 + i % 2) & 1))
            p.at[row / 2][2 * unit + i / 2][row % 2 * 2 + i % 2] = 0;
        }
      }
    }
  }
}

// Rows are keys, columns queries: the eight lanes of a column share its units. Bit
// (m kN / 8 + n) 4 + i tells whether element i of tile (m, n) is kept.
template <int kM, int kN, MaskKind kMask>
__device__ __forceinline__ uint32_t kept_of_transposed(const DropoutMask& dropout,
                                                       const KernelMask<kMask>& mask, int b, int h, int query,
                                                       int key) {
  constexpr int kColumns = kN / 4, kItems = kM / Dropout::kUnit * kColumns;  // an item: a unit of a column
  static_assert(kItems * 2 <= 32);
  const int lane = threadIdx.x % 32, member = lane / 4;
  const auto draw = [&](int item) {
    const int column = item % kColumns;
    return dropout.draw(b, h, mask.token_of(query + column / 2 * 8 + lane % 4 * 2 + column % 2),
                        key / Dropout::kUnit + item / kColumns);
  };
  uint32_t mine = 0;
#pragma unroll
  for (int first = 0; first < kItems; first += 16) {
    const bool two = first + 8 < kItems;
    const Philox::Words words = draw(first + member % min(8, kItems));
    const uint32_t drawn = dropout.kept(words, two ? draw(first + 8 + member) : words);
#pragma unroll
    for (int owner = 0; owner < min(8, kItems); ++owner) {
      const uint32_t kept = __shfl_sync(~0u, drawn, 4 * owner + lane % 4) >> member;
#pragma unroll
      for (int half = 0; half < (two ? 2 : 1); ++half) {
        const int item = first + 8 * half + owner, column = item % kColumns;
        const int tile = item / kColumns * (kN / 8) + column / 2;
#pragma unroll
        for (int r = 0; r < 2; ++r)  // rows member and member + 8 of the unit
          mine |= (kept >> (16 * half + 8 * r) & 1) << (4 * tile + 2 * r + column % 2);
      }
    }
  }
  return mine;
}

}  // namespace tessera::attention::sm80
