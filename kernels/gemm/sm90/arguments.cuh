// What the warpgroups of a GEMM share: arguments, tiles, shared memory, barriers.
#pragma once

#include "kernels/gemm/sm90/problem.h"
#include "kernels/gemm/sm90/shape.h"
#include "kernels/hopper/ring.cuh"
#include "kernels/hopper/tile.cuh"

namespace tessera::gemm {

inline constexpr int kHalves = kTileRows / kWarpgroupRows;
// A thread's accumulators of its consumer's tile: wgmma's layout (kernels/hopper/ptx.cuh) for each 64 rows
using Sums = float[kHalves][kTileColumns / 2];

struct Arguments {
  CUtensorMap a, b, d, e;
  const uint32_t* bias;  // [n / 2] pairs of bf16, or none
  float* partials;       // see Problem, or none
  Exponentials exponentials;
  Fp8Operands fp8;
  int m, n;
  int row_tiles;            // in units of a cluster's rows
  int column_tiles, steps;  // of K
  int group;                // clusters' rows of tiles that are walked together, column by column
};

// Named barriers, two of each: for the threads of a consumer, and for the turn of a consumer to multiply.
// Its turn comes when the other has issued all its wgmmas: earlier, the parity of a slot that is two
// rounds of the ring ahead would be that of the round under way.
enum : int { kConsumerBarrier = 1, kTurnBarrier = kConsumerBarrier + kConsumers };

// A tile of a cluster: where this CTA's rows and its columns begin
struct TilePlace {
  int row, column;
};
// Of the tiles of `row_tiles` clusters' rows, of which `group` are walked together, column by column
__device__ __forceinline__ TilePlace place_of(int index, int row_tiles, int column_tiles, int group,
                                              uint32_t rank) {
  const int whole = group * column_tiles, first = index / whole * group;
  const int rows = min(group, row_tiles - first), rest = index % whole;
  return {((first + rest % rows) * kCluster + static_cast<int>(rank)) * kTileRows,
          rest / rows * kTileColumns};
}
__device__ __forceinline__ TilePlace place_of(const Arguments& args, int index, uint32_t rank) {
  return place_of(index, args.row_tiles, args.column_tiles, args.group, rank);
}

struct Memory {
  uint32_t base;

  __device__ __forceinline__ Tile<kTileRows, kBlockK> a(int slot) const { return {base + slot * kSlotBytes}; }
  __device__ __forceinline__ uint32_t b(int slot) const { return base + slot * kSlotBytes + kABytes; }
  __device__ __forceinline__ Tile<kTileRows, kPanel> buffer(int consumer, int which) const {
    return {base + kSlots * kSlotBytes + (consumer * kBuffers + which) * kBufferBytes};
  }
  __device__ __forceinline__ uint32_t scratch(int consumer) const {
    return buffer(kConsumers, 0).base + consumer * kScratchBytes;
  }
  __device__ __forceinline__ Ring<kSlots> ring() const { return {scratch(kConsumers)}; }
  // Bits of the largest magnitude that a consumer has written in FP8
  static __device__ __forceinline__ uint32_t* largest(int consumer) {
    extern __shared__ __align__(1024) char shared[];
    return reinterpret_cast<uint32_t*>(shared + kSharedBytes) - kConsumers + consumer;
  }
  // Full once an operand of the epilogue has come
  __device__ __forceinline__ uint32_t operand_barrier(int consumer, int which) const {
    return ring().base + Ring<kSlots>::kBytes + (consumer * kBuffers + which) * 8;
  }
};

}  // namespace tessera::gemm
