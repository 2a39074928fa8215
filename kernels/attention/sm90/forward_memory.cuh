// What the forward kernel is given, its shared memory and its barriers.
#pragma once

#include <cuda_bf16.h>

#include <type_traits>

#include "kernels/attention/blocks.h"
#include "kernels/attention/common/score.cuh"
#include "kernels/attention/sm90/forward_schedule.h"
#include "kernels/attention/sm90/workspace.h"
#include "kernels/hopper/ring.cuh"
#include "kernels/hopper/tile.cuh"

namespace tessera::attention::sm90 {

struct ForwardArgs {
  CUtensorMap q, k, v, out;
  ForwardSchedule schedule;
  float* lse;  // [B, H, N]
  int tokens;
  ScoreArgs score;
  DropoutMask dropout;
  // With kAnyMask: see ForwardWorkspace.
  uint32_t* ticket;
  const int32_t* order;
  const SliceKeys* slices_keys;
  const Span* rows_keys;
  const __nv_bfloat16* sinks;  // [H], with kSink
  Alibi alibi;                 // with a biased score, as the next
  int query_offset;            // query i stands at i + query_offset among the keys
  ScoreCap cap;                // with a capped score
};

// With kListed, where j counts places of a list
struct ListedForwardArgs : ForwardArgs {
  Blocks blocks;
  Divisor list_heads;  // heads of a list
  int shift;           // a block is 1 << shift key tiles
  int no_tile;         // one past the last key: of queries whose list is empty, place -1

  // `list`: where the list of the query tile begins in blocks.keys
  __device__ __forceinline__ int key_tile(int list, int j) const {
    return j < 0 ? no_tile : (__ldg(blocks.keys + list + (j >> shift)) << shift) + (j & ((1 << shift) - 1));
  }
};
template <class Shape>
using ForwardArgsOf = std::conditional_t<Shape::kListed, ListedForwardArgs, ForwardArgs>;

template <class Shape>
struct ForwardTiles {
  using Q = Tile<kWarpgroupRows, Shape::kHeadDim>;
  using K = Tile<Shape::kBlockK, Shape::kHeadDim>;
  using V = K;
  static constexpr int kLoadedOfV = V::kBytes;
  static constexpr bool kOwnOut = false;  // O leaves by the slot of Q that it belongs to
};

// Rings of Q (for each consumer its own, with what there is to do), K and V; with kOwnOut each consumer also
// has a tile of O
template <class Shape>
struct ForwardMemory {
  using Q = typename ForwardTiles<Shape>::Q;
  using K = typename ForwardTiles<Shape>::K;
  using V = typename ForwardTiles<Shape>::V;
  using O = Tile<kWarpgroupRows, Shape::kHeadDim>;
  using QRing = Ring<Shape::kQSlots>;
  using KVRing = Ring<Shape::kKVSlots>;
  static constexpr int kWorkBytes = Shape::kAnyMask ? 48 : 16;
  static constexpr int kRowsKeysBytes = Shape::kAnyMask ? kWarpgroupRows * 8 : 0;  // of a slice
  static constexpr int kKAt = Shape::kConsumers * Shape::kQSlots * Q::kBytes,
                       kVAt = kKAt + Shape::kKVSlots * K::kBytes, kOAt = kVAt + Shape::kKVSlots * V::kBytes,
                       kWorkAt = kOAt + (ForwardTiles<Shape>::kOwnOut ? Shape::kConsumers * O::kBytes : 0),
                       kRowsKeysAt = kWorkAt + Shape::kConsumers * Shape::kQSlots * kWorkBytes,
                       kRingsAt = kRowsKeysAt + Shape::kConsumers * Shape::kQSlots * kRowsKeysBytes,
                       kBytes = kRingsAt + Shape::kConsumers * QRing::kBytes + 2 * KVRing::kBytes;
  static constexpr int kAskFor = kBytes + kTileAlignment;  // the base is rounded up
  static_assert(kAskFor <= kSharedBytesOfCta);

  uint32_t base;

  __device__ __forceinline__ ForwardMemory() {
    extern __shared__ uint8_t shared[];
    base = (static_cast<uint32_t>(__cvta_generic_to_shared(shared)) + kTileAlignment - 1) &
           ~(kTileAlignment - 1);
  }
  __device__ __forceinline__ Q q(int warpgroup, int slot) const {
    return {base + (warpgroup * Shape::kQSlots + slot) * Q::kBytes};
  }
  __device__ __forceinline__ K k(int slot) const { return {base + kKAt + slot * K::kBytes}; }
  __device__ __forceinline__ V v(int slot) const { return {base + kVAt + slot * V::kBytes}; }
  __device__ __forceinline__ O o(int warpgroup) const {
    static_assert(ForwardTiles<Shape>::kOwnOut);
    return {base + kOAt + warpgroup * O::kBytes};
  }
  __device__ __forceinline__ uint32_t work(int warpgroup, int slot) const {
    return base + kWorkAt + (warpgroup * Shape::kQSlots + slot) * kWorkBytes;
  }
  // With kAnyMask: the keys that each row of the slice sees
  __device__ __forceinline__ uint32_t rows_keys(int warpgroup, int slot) const {
    return base + kRowsKeysAt + (warpgroup * Shape::kQSlots + slot) * kRowsKeysBytes;
  }
  __device__ __forceinline__ QRing q_ring(int warpgroup) const {
    return {base + kRingsAt + warpgroup * QRing::kBytes};
  }
  __device__ __forceinline__ KVRing k_ring() const {
    return {base + kRingsAt + Shape::kConsumers * QRing::kBytes};
  }
  __device__ __forceinline__ KVRing v_ring() const { return {k_ring().base + KVRing::kBytes}; }
};

// What a consumer has to do, handed over with its slice of queries
template <class Shape>
struct ForwardWorkTile {
  int key_tiles;  // the query tile walks down from the one before this; -1: there is no more work
  int row;        // where the slice begins; past the end of the sequence, this consumer has none
  int head, batch;
  int first_key_tile = 0;  // down to this one
  SliceKeys keys = {};     // with kAnyMask
  int list = 0;            // with kListed: where the tile's begins

  // The key tile that the query tile meets at j
  __device__ __forceinline__ int key_tile(const ForwardArgsOf<Shape>& a, int j) const {
    if constexpr (Shape::kListed) return a.key_tile(list, j);
    return j;
  }

  __device__ __forceinline__ void store(uint32_t to) const {
    ptx::store_shared(to, make_uint4(key_tiles, row, head, batch));
    if constexpr (Shape::kAnyMask) {
      ptx::store_shared(to + 16,
                        make_uint4(keys.tiles.begin, keys.tiles.end, keys.whole.begin, keys.whole.end));
      ptx::store_shared(to + 32, make_uint2(first_key_tile, list));
    }
  }
  static __device__ __forceinline__ ForwardWorkTile load(uint32_t from) {
    const uint4 w = ptx::load_shared_uint4(from);
    ForwardWorkTile work{static_cast<int>(w.x), static_cast<int>(w.y), static_cast<int>(w.z),
                         static_cast<int>(w.w)};
    if constexpr (Shape::kAnyMask) {
      const uint4 k = ptx::load_shared_uint4(from + 16);
      work.keys = {{static_cast<int>(k.x), static_cast<int>(k.y)},
                   {static_cast<int>(k.z), static_cast<int>(k.w)}};
      const int2 first = ptx::load_shared_int2(from + 32);
      work.first_key_tile = first.x;
      if constexpr (Shape::kListed) work.list = first.y;
    }
    return work;
  }
};

// Named barriers; 0 is __syncthreads()
__device__ __forceinline__ int own_barrier(int warpgroup) { return 1 + warpgroup; }
__device__ __forceinline__ int turn_barrier(int warpgroup) { return 5 + warpgroup; }

// The consumers take turns, in a circle. The last one passes on the first turn, which is warpgroup 0's.
__device__ __forceinline__ void take_turn(int warpgroup) {
  ptx::barrier_sync(turn_barrier(warpgroup), 2 * kWarpgroup);
}
template <class Shape>
__device__ __forceinline__ void pass_turn(int warpgroup) {
  ptx::barrier_arrive(turn_barrier(warpgroup == Shape::kConsumers - 1 ? 0 : warpgroup + 1), 2 * kWarpgroup);
}

// Key tiles that rows before end_row see, of a plain mask
template <class Shape, bool kCausal>
__device__ __forceinline__ int key_tiles(int tokens, int end_row) {
  return ((kCausal ? min(tokens, end_row) : tokens) + Shape::kBlockK - 1) / Shape::kBlockK;
}

}  // namespace tessera::attention::sm90
