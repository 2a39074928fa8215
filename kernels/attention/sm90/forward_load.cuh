// The loading thread of the forward: query slices with what there is to do, then the key tiles, last to
// first. K runs one tile ahead of V, as the products do.
#pragma once

#include "kernels/attention/sm90/forward_memory.cuh"

namespace tessera::attention::sm90 {

// The items of a CTA, one after another, and what their rows see
template <class Shape, bool kCausal>
struct ForwardItems {
  const ForwardArgs& a;
  ForwardSchedule::Walk walk;
  QueryTile tile;

  __device__ __forceinline__ explicit ForwardItems(const ForwardArgs& args)
      : a(args), walk(args.schedule.begin(blockIdx.x)) {}
  __device__ __forceinline__ bool next() {
    const int item = a.schedule.next<kCausal>(walk, gridDim.x);
    tile = a.schedule.tile<kCausal>(max(item, 0));
    return item >= 0;
  }
  __device__ __forceinline__ SliceKeys keys_of(int /*slice*/) const { return {}; }
  __device__ __forceinline__ Span key_tiles() const {
    return {0, sm90::key_tiles<Shape, kCausal>(a.tokens, tile.last_slice * kWarpgroupRows)};
  }
};
template <class Shape, bool kCausal>
requires(Shape::kAnyMask && !Shape::kListed) struct ForwardItems<Shape, kCausal> {
  const ForwardArgs& a;
  const uint32_t items;
  uint32_t ticket;  // taken one item ahead, for it takes a while
  QueryTile tile;

  __device__ __forceinline__ explicit ForwardItems(const ForwardArgs& args)
      : a(args), items(args.schedule.items()), ticket(atomicAdd(args.ticket, 1u)) {}
  __device__ __forceinline__ bool next() {
    const uint32_t item = ticket;
    if (item < items) ticket = atomicAdd(a.ticket, 1u);
    tile = a.schedule.tile_in_order(item < items ? static_cast<int>(item) : 0, a.order);
    return item < items;
  }
  __device__ __forceinline__ SliceKeys keys_of(int slice) const {
    return a.slices_keys[tile.batch * a.schedule.slices() + slice];
  }
  __device__ __forceinline__ Span key_tiles() const {
    return {keys_of(tile.first_slice).tiles.begin, keys_of(tile.last_slice - 1).tiles.end};
  }
};

template <class Shape, bool kCausal>
requires(Shape::kListed) struct ForwardItems<Shape, kCausal> {
  const ListedForwardArgs& a;
  const uint32_t items;
  uint32_t ticket;  // taken one item ahead
  QueryTile tile;
  int all_list, list;  // the tile's list, of all sequences; where it begins

  __device__ __forceinline__ explicit ForwardItems(const ListedForwardArgs& args)
      : a(args), items(args.schedule.items()), ticket(atomicAdd(args.ticket, 1u)) {}
  __device__ __forceinline__ bool next() {
    const uint32_t item = ticket;
    if (item < items) ticket = atomicAdd(a.ticket, 1u);
    tile = a.schedule.tile_in_order(item < items ? static_cast<int>(item) : 0, a.order, a.list_heads);
    all_list = a.list_heads.divide(tile.batch * a.schedule.heads() + tile.head);
    const int of_sequence = all_list - tile.batch * a.blocks.lists,
              block = (tile.first_slice * kWarpgroupRows + a.query_offset) / a.blocks.size;
    list = a.blocks.begins[of_sequence * (a.blocks.query_blocks + 1) + block];
    return item < items;
  }
  __device__ __forceinline__ SliceKeys keys_of(int slice) const {
    return a.slices_keys[all_list * a.schedule.slices() + slice];
  }
  __device__ __forceinline__ Span key_tiles() const {
    return {keys_of(tile.first_slice).tiles.begin, keys_of(tile.last_slice - 1).tiles.end};
  }
};

template <class Shape, bool kCausal>
__device__ __forceinline__ void produce(const ForwardArgsOf<Shape>& a, ForwardMemory<Shape> memory) {
  using Memory = ForwardMemory<Shape>;
  ptx::prefetch(a.q), ptx::prefetch(a.k), ptx::prefetch(a.v), ptx::prefetch(a.out);
  typename Memory::QRing::Place q_at;
  typename Memory::KVRing::Place k_at, v_at;
  for (ForwardItems<Shape, kCausal> items(a);;) {
    const bool any = items.next();
    const QueryTile& tile = items.tile;
    const Span all = items.key_tiles();
#pragma unroll
    for (int w = 0; w < Shape::kConsumers; ++w) {
      const int slice = tile.first_slice + w;
      const bool active = any && slice < tile.last_slice;
      const SliceKeys keys = active ? items.keys_of(slice) : SliceKeys{};
      const auto ring = memory.q_ring(w);
      ring.wait_empty(q_at);
      const int row = active ? slice * kWarpgroupRows : a.tokens;
      ForwardWorkTile<Shape> work{any ? all.end : -1, row, tile.head, tile.batch, all.begin, keys};
      if constexpr (Shape::kListed) work.list = items.list;
      work.store(memory.work(w, q_at.slot));
      const uint32_t barrier = ring.announce(q_at, active ? Memory::Q::kBytes + Memory::kRowsKeysBytes : 0);
      if (!active) continue;
      load_tile<Shape::kWhole>(memory.q(w, q_at.slot), a.q, barrier, row, tile.head, tile.batch);
      if constexpr (Shape::kAnyMask)
        ptx::load_bytes(memory.rows_keys(w, q_at.slot),
                        a.rows_keys + (tile.batch * a.schedule.slices() + slice) * int64_t{kWarpgroupRows},
                        Memory::kRowsKeysBytes, barrier);
    }
    q_at.next();
    if (!any) break;
    const auto fill_k = [&](int j) {
      const uint32_t barrier = memory.k_ring().begin_fill(k_at, Memory::K::kBytes);
      load_tile<Shape::kWhole>(memory.k(k_at.slot), a.k, barrier, j * Shape::kBlockK, tile.kv_head,
                               tile.batch);
      k_at.next();
    };
    const auto fill_v = [&](int j) {
      const uint32_t barrier = memory.v_ring().begin_fill(v_at, ForwardTiles<Shape>::kLoadedOfV);
      if constexpr (Shape::kFp8) {  // keys are columns
        ptx::load_panel(memory.v(v_at.slot).base, a.v, barrier, j * Shape::kBlockK / 2, 0, tile.kv_head,
                        tile.batch);
      } else {
        load_tile<Shape::kWhole>(memory.v(v_at.slot), a.v, barrier, j * Shape::kBlockK, tile.kv_head,
                                 tile.batch);
      }
      v_at.next();
    };
    int j = all.end - 1;
    if constexpr (Shape::kListed) {
      int key_tile = a.key_tile(items.list, j);
      fill_k(key_tile);
      for (; j >= all.begin; --j) {
        const int of_v = key_tile;
        if (j > all.begin) fill_k(key_tile = a.key_tile(items.list, j - 1));
        fill_v(of_v);
      }
    } else {
      fill_k(j);
      for (; j >= all.begin; --j) {
        if (j > all.begin) fill_k(j - 1);
        fill_v(j);
      }
    }
  }
}

}  // namespace tessera::attention::sm90
