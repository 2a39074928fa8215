// Arguments and shared memory of the backward.
#pragma once

#include <cuda_bf16.h>

#include <type_traits>

#include "kernels/attention/blocks.h"
#include "kernels/attention/common/score.cuh"
#include "kernels/attention/mask.h"
#include "kernels/attention/sm90/workspace.h"
#include "kernels/hopper/ring.cuh"
#include "kernels/hopper/tile.cuh"

namespace tessera::attention::sm90 {

using bf16 = __nv_bfloat16;

struct BackwardArgs {
  CUtensorMap q, k, v, dout, dk, dv;
  CUtensorMap dq[2];            // boxes of a part, one map for each column where one begins
  const float* row_statistics;  // this and the next four: see BackwardWorkspace
  float* dq_sums;
  uint32_t* counters;
  float* key_sums;
  uint32_t* key_counters;
  int tokens, kv_tokens, heads, kv_heads, heads_per_kv, query_tiles, key_blocks;
  int all_kv_heads;         // of all sequences
  int heads_per_work_tile;  // query heads
  uint32_t work_tiles;      // key blocks of all groups of so many query heads
  int groups_at_once;       // see WorkTile, as the next two
  int descending_groups;
  int wave_blocks;  // key blocks of a wave; 0: no waves
  int causal;
  ScoreArgs score;
  DropoutMask dropout;
  Mask mask;  // with kAnyMask, as the next three: see BackwardWorkspace
  const Span *blocks_of_tiles, *tiles_of_blocks;
  const BlockTiles* block_tiles;
  Alibi alibi;       // with a biased score, as the next
  int query_offset;  // query i stands at i + query_offset among the keys
  ScoreCap cap;      // with a capped score
};

// With kListed, where query tiles of a key block are counted by their places in its list
struct ListedBackwardArgs : BackwardArgs {
  Blocks blocks;
  int key_shift, query_shift;   // a block is 1 << shift key blocks of kBlockK, or query tiles
  int tiles_before;             // query tiles of blocks before the first query
  int parts;                    // BackwardWorkspace::listed_parts_of()
  const Span* places_of_tiles;  // this and the next: see BackwardWorkspace
  const ListedWork* work;
  uint32_t* part_counters;
  float* part_sums;

  __device__ __forceinline__ int list_of(int kv_head) const { return kv_head / blocks.kv_heads; }
};
template <class Shape>
using BackwardArgsOf = std::conditional_t<Shape::kListed, ListedBackwardArgs, BackwardArgs>;

template <class Shape>
struct BackwardMemory {
  using Keys = Tile<Shape::kBlockK, Shape::kHeadDim>;
  using Queries = Tile<Shape::kBlockQ, Shape::kHeadDim>;
  using Scores = Tile<Shape::kBlockK, Shape::kBlockQ>;      // dS^T
  using Gradients = Tile<kWarpgroupRows, Shape::kHeadDim>;  // dK or dV of a warpgroup, on its way out
  using Part = Tile<Shape::kPart, Shape::kPart>;            // of dQ, finished
  using KeyRing = Ring<1>;
  using QRing = Ring<Shape::kSlots>;
  using DoutRing = Ring<Shape::kSlots>;
  static constexpr int kRowsBytes = 2 * Shape::kBlockQ * 4, kPartBytes = Shape::kPartFloats * 4;
  static constexpr int kV = Keys::kBytes, kQ = 2 * Keys::kBytes, kDout = kQ + Shape::kSlots * Queries::kBytes,
                       kScores = kDout + Shape::kSlots * Queries::kBytes,
                       kParts = kScores + Shape::kSlots * Scores::kBytes,
                       kRows = kParts + Shape::kGroups * Shape::kSlots * kPartBytes,
                       kRings = kRows + Shape::kSlots * kRowsBytes,
                       kBarriers = kRings + 2 * KeyRing::kBytes + QRing::kBytes + DoutRing::kBytes,
                       kWork =
                           (kBarriers + (2 * Shape::kSlots + 3 * Shape::kGroups * Shape::kSlots) * 8 + 15) /
                           16 * 16,
                       kAdders = kWork + (Shape::kListed    ? 32
                                          : Shape::kAnyMask ? 24
                                                            : 16);
  static constexpr int kInWaves = kAdders + (Shape::kAnyMask ? Shape::kSlots * 8 : 0);
  static constexpr int kBytes = kInWaves + (Shape::kAnyMask ? 8 : 0);
  static_assert(kBytes <= kSharedBytesOfCta);

  uint32_t base;

  // Dynamic shared memory begins at a multiple of 1024 where there is no static: init_barriers() makes sure.
  __device__ __forceinline__ BackwardMemory() {
    extern __shared__ __align__(1024) uint8_t shared[];
    base = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  }
  __device__ __forceinline__ Keys k() const { return {base}; }
  __device__ __forceinline__ Keys v() const { return {base + kV}; }
  __device__ __forceinline__ Queries q(int slot) const { return {base + kQ + slot * Queries::kBytes}; }
  __device__ __forceinline__ Queries dout(int slot) const { return {base + kDout + slot * Queries::kBytes}; }
  __device__ __forceinline__ Scores ds(int slot) const { return {base + kScores + slot * Scores::kBytes}; }
  __device__ __forceinline__ uint32_t part(int group, int slot) const {
    return base + kParts + (group * Shape::kSlots + slot) * kPartBytes;
  }
  // LSE log2(e) and behind it delta of the queries in this slot of Q
  __device__ __forceinline__ uint32_t rows(int q_slot) const { return base + kRows + q_slot * kRowsBytes; }

  __device__ __forceinline__ KeyRing k_ring() const { return {base + kRings}; }
  __device__ __forceinline__ KeyRing v_ring() const { return {base + kRings + KeyRing::kBytes}; }
  __device__ __forceinline__ QRing q_ring() const { return {base + kRings + 2 * KeyRing::kBytes}; }
  __device__ __forceinline__ DoutRing dout_ring() const {
    return {base + kRings + 2 * KeyRing::kBytes + QRing::kBytes};
  }
  // mbarriers. dS^T of a slot is there; is no longer needed (an arrival a warp)
  __device__ __forceinline__ uint32_t ds_full(int slot) const { return base + kBarriers + 8 * slot; }
  __device__ __forceinline__ uint32_t ds_empty(int slot) const { return ds_full(Shape::kSlots) + 8 * slot; }
  // A warpgroup's part of dQ is in shared memory (an arrival a warp); has left it (one); the sum of the
  // other key blocks is in its place (one, and bytes)
  __device__ __forceinline__ uint32_t part_full(int group, int slot) const {
    return ds_empty(Shape::kSlots) + 8 * (group * Shape::kSlots + slot);
  }
  __device__ __forceinline__ uint32_t part_empty(int group, int slot) const {
    return part_full(group, slot) + 8 * Shape::kGroups * Shape::kSlots;
  }
  __device__ __forceinline__ uint32_t others_there(int group, int slot) const {
    return part_empty(group, slot) + 8 * Shape::kGroups * Shape::kSlots;
  }
  __device__ __forceinline__ uint32_t work() const { return base + kWork; }
  // With kAnyMask: the key blocks that add to dQ of the queries in this slot of Q
  __device__ __forceinline__ uint32_t adders(int q_slot) const { return base + kAdders + 8 * q_slot; }

  // With kAnyMask: of in_waves()
  __device__ __forceinline__ uint32_t in_waves() const { return base + kInWaves; }

  __device__ __forceinline__ void init_barriers() const {
    if (base % kTileAlignment != 0) __trap();
    // Each warp, and for the work that comes with K those who send dQ
    k_ring().init(Shape::kGroups * kWarpsPerGroup + Shape::kSenders);
    v_ring().init(Shape::kGroups * kWarpsPerGroup);
    q_ring().init(Shape::kGroups * kWarpsPerGroup);
    dout_ring().init(Shape::kGroups * kWarpsPerGroup);
    for (int s = 0; s < Shape::kSlots; ++s) {
      ptx::mbarrier_init(ds_full(s), Shape::kGroups * kWarpsPerGroup);
      ptx::mbarrier_init(ds_empty(s), Shape::kGroups * kWarpsPerGroup);
    }
    for (int g = 0; g < Shape::kGroups; ++g) {
      for (int s = 0; s < Shape::kSlots; ++s) {
        ptx::mbarrier_init(part_full(g, s), kWarpsPerGroup);
        ptx::mbarrier_init(part_empty(g, s), 1);
        ptx::mbarrier_init(others_there(g, s), 1);
      }
    }
    ptx::fence_mbarrier_init();
  }
};

}  // namespace tessera::attention::sm90
