// The loading thread of the forward: query slices with what there is to do, then the key tiles, last to
// first. K runs one tile ahead of V, as the products do.
#pragma once

#include "kernels/attention/sm90/forward_memory.cuh"

namespace tessera::attention::sm90 {

// The items of a CTA, one after another; -1 after the last
template <class Shape, bool kCausal>
struct ForwardItems {
  const ForwardArgs& a;
  ForwardSchedule::Walk walk;

  __device__ __forceinline__ explicit ForwardItems(const ForwardArgs& args)
      : a(args), walk(args.schedule.begin(blockIdx.x)) {}
  __device__ __forceinline__ int next() { return a.schedule.next<kCausal>(walk, gridDim.x); }
  __device__ __forceinline__ QueryTile tile(int item) const { return a.schedule.tile<kCausal>(item); }
};
template <class Shape, bool kCausal>
  requires Shape::kAnyMask
struct ForwardItems<Shape, kCausal> {
  const ForwardArgs& a;
  uint32_t ticket;  // taken one item ahead, for it takes a while

  __device__ __forceinline__ explicit ForwardItems(const ForwardArgs& args)
      : a(args), ticket(atomicAdd(args.tickets, 1u)) {}
  __device__ __forceinline__ int next() {
    const uint32_t item = ticket;
    if (item >= static_cast<uint32_t>(a.schedule.items())) return -1;
    ticket = atomicAdd(a.tickets, 1u);
    return static_cast<int>(item);
  }
  __device__ __forceinline__ QueryTile tile(int item) const {
    return a.schedule.tile_in_order(item, a.order);
  }
};

template <class Shape, bool kCausal>
__device__ __forceinline__ void produce(const ForwardArgs& a, ForwardMemory<Shape> memory) {
  using Memory = ForwardMemory<Shape>;
  ptx::prefetch(a.q), ptx::prefetch(a.k), ptx::prefetch(a.v), ptx::prefetch(a.out);
  typename Memory::QRing::Place q_at;
  typename Memory::KVRing::Place k_at, v_at;
  for (ForwardItems<Shape, kCausal> items(a);;) {
    const int item = items.next();
    const QueryTile tile = items.tile(max(item, 0));
    const Span all = key_tiles<Shape, kCausal>(a, tile.batch, tile.first_slice * kWarpgroupRows,
                                               tile.last_slice * kWarpgroupRows);
#pragma unroll
    for (int w = 0; w < Shape::kConsumers; ++w) {
      const int slice = tile.first_slice + w;
      const bool active = item >= 0 && slice < tile.last_slice;
      const auto ring = memory.q_ring(w);
      ring.wait_empty(q_at);
      const int row = active ? slice * kWarpgroupRows : a.tokens;
      ForwardWork<Shape>{item < 0 ? -1 : all.end, row, tile.head, tile.batch, all.begin}.store(
          memory.work(w, q_at.stage));
      const uint32_t barrier = ring.announce(q_at, active ? Memory::Q::kBytes : 0);
      if (active) load_tile<Shape::kWhole>(memory.q(w, q_at.stage), a.q, barrier, row, tile.head, tile.batch);
    }
    q_at.next();
    if (item < 0) break;
    const auto fill_k = [&](int j) {
      const uint32_t barrier = memory.k_ring().begin_fill(k_at, Memory::KV::kBytes);
      load_tile<Shape::kWhole>(memory.k(k_at.stage), a.k, barrier, j * Shape::kBlockK, tile.kv_head,
                               tile.batch);
      k_at.next();
    };
    const auto fill_v = [&](int j) {
      const uint32_t barrier = memory.v_ring().begin_fill(v_at, Memory::KV::kBytes);
      load_tile<Shape::kWhole>(memory.v(v_at.stage), a.v, barrier, j * Shape::kBlockK, tile.kv_head,
                               tile.batch);
      v_at.next();
    };
    int j = all.end - 1;
    fill_k(j);
    for (; j >= all.begin; --j) {
      if (j > all.begin) fill_k(j - 1);
      fill_v(j);
    }
  }
}

}  // namespace tessera::attention::sm90
