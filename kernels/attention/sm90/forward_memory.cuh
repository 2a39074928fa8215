// What the forward kernel is given, its shared memory and its barriers.
#pragma once

#include "kernels/attention/mask.h"
#include "kernels/attention/sm90/forward_schedule.h"
#include "kernels/attention/sm90/pipeline.cuh"
#include "kernels/attention/sm90/tile.cuh"

namespace tessera::attention::sm90 {

struct ForwardArgs {
  CUtensorMap q, k, v, out;
  ForwardSchedule schedule;
  float* lse;  // [B, H, N]
  int tokens;
  float scale;
  DropoutMask dropout;
  Mask mask;  // with kAnyMask, as the next: what ForwardOrder has, see forward_order.cuh
  uint32_t* tickets;
  const int32_t* order;
};

// Rings of Q (for each consumer its own, with what there is to do), K and V. O
// leaves by the stage of Q that it belongs to.
template <class Shape>
struct ForwardMemory {
  using Q = Tile<kWarpgroupRows, Shape::kHeadDim>;
  using KV = Tile<Shape::kBlockK, Shape::kHeadDim>;
  using QRing = Ring<Shape::kQStages>;
  using KVRing = Ring<Shape::kKVStages>;
  static constexpr int kWorkBytes = Shape::kAnyMask ? 32 : 16;
  static constexpr int kKAt = Shape::kConsumers * Shape::kQStages * Q::kBytes,
                       kVAt = kKAt + Shape::kKVStages * KV::kBytes,
                       kWorkAt = kVAt + Shape::kKVStages * KV::kBytes,
                       kRingsAt = kWorkAt + Shape::kConsumers * Shape::kQStages * kWorkBytes,
                       kBytes = kRingsAt + Shape::kConsumers * QRing::kBytes + 2 * KVRing::kBytes;
  static constexpr int kAskFor = kBytes + kTileAlignment;  // the base is rounded up

  uint32_t base;

  __device__ __forceinline__ ForwardMemory() {
    extern __shared__ uint8_t shared[];
    base = (static_cast<uint32_t>(__cvta_generic_to_shared(shared)) + kTileAlignment - 1) &
           ~(kTileAlignment - 1);
  }
  __device__ __forceinline__ Q q(int warpgroup, int stage) const {
    return {base + (warpgroup * Shape::kQStages + stage) * Q::kBytes};
  }
  __device__ __forceinline__ KV k(int stage) const { return {base + kKAt + stage * KV::kBytes}; }
  __device__ __forceinline__ KV v(int stage) const { return {base + kVAt + stage * KV::kBytes}; }
  __device__ __forceinline__ uint32_t work(int warpgroup, int stage) const {
    return base + kWorkAt + (warpgroup * Shape::kQStages + stage) * kWorkBytes;
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
struct ForwardWork {
  int key_tiles;  // the query tile walks down from the one before this; -1: there is no more work
  int row;        // where the slice begins; past the end of the sequence, this consumer has none
  int head, batch;
  int first_key_tile = 0;  // down to this one

  __device__ __forceinline__ void store(uint32_t to) const {
    ptx::store_shared(to, make_uint4(key_tiles, row, head, batch));
    if constexpr (Shape::kAnyMask) ptx::store_shared(to + 16, make_uint2(first_key_tile, 0));
  }
  static __device__ __forceinline__ ForwardWork load(uint32_t from) {
    const uint4 w = ptx::load_shared_uint4(from);
    ForwardWork work{static_cast<int>(w.x), static_cast<int>(w.y), static_cast<int>(w.z),
                     static_cast<int>(w.w)};
    if constexpr (Shape::kAnyMask) work.first_key_tile = ptx::load_shared_uint2(from + 16).x;
    return work;
  }
};

// Named barriers; 0 is __syncthreads()
__device__ __forceinline__ int own_barrier(int warpgroup) { return 1 + warpgroup; }
__device__ __forceinline__ int turn_barrier(int warpgroup) { return 5 + warpgroup; }

// Key tiles that the rows from `row` up to `end_row` see; at least one, so that a row that sees nothing gets its
// results as any other.
template <class Shape, bool kCausal>
__device__ __forceinline__ Span key_tiles(const ForwardArgs& a, int batch, int row, int end_row) {
  if constexpr (Shape::kAnyMask) {
    const Span keys = a.mask.of_sequence(batch).keys_of({row, min(end_row, a.tokens)});
    const int first = min(keys.begin, a.mask.keys - 1) / Shape::kBlockK;
    return {first, max((keys.end + Shape::kBlockK - 1) / Shape::kBlockK, first + 1)};
  } else {
    return {0, ((kCausal ? min(a.tokens, end_row) : a.tokens) + Shape::kBlockK - 1) / Shape::kBlockK};
  }
}

}  // namespace tessera::attention::sm90
