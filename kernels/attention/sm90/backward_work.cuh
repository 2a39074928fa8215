// Which key blocks a CTA works on, in which order it meets query tiles, and why CTAs that add to dQ in a
// fixed order do not deadlock.
//
// CTAs stay, and take tickets as they become free; within a head tickets go to key blocks downwards. Before
// it adds to query tile i, key block j waits until all blocks above j that see tile i have added. Those have
// smaller tickets: so the block with the smallest unfinished ticket waits for none, a CTA works on its
// tickets in their order, and by induction every block gets done.
//
// There is little to wait for. A causal block j meets tile i in its step i - j (in units of
// kBlockK), one after block j + 1 has met it. Without a mask block j meets every tile in the same
// step as block j + 1 and has to lag behind it: there, several heads take turns with their
// tickets, so that block j also starts later.
#pragma once

#include "kernels/attention/sm90/backward_args.cuh"

namespace tessera::attention::sm90 {

template <class Shape>
__device__ __forceinline__ int first_tile(int key_block, const BackwardArgs& a) {
  return a.causal ? key_block * (Shape::kBlockK / Shape::kBlockQ) : 0;
}

struct Work {
  int key_block, kv_head, batch;
  int steps;  // query tiles that see the block, times query heads

  template <class Shape>
  static __device__ __forceinline__ Work of(uint32_t ticket, const BackwardArgs& a) {
    const auto blocks = static_cast<uint32_t>(a.key_blocks), at_once = static_cast<uint32_t>(a.heads_at_once);
    const uint32_t first_head = ticket / (at_once * blocks) * at_once;
    const uint32_t heads = min(at_once, a.works / blocks - first_head);
    ticket -= first_head * blocks;
    const uint32_t head = first_head + ticket % heads;
    const auto key_block = static_cast<int>(blocks - 1 - ticket / heads);
    return {key_block, static_cast<int>(head % a.kv_heads), static_cast<int>(head / a.kv_heads),
            a.heads_per_kv * (a.query_tiles - first_tile<Shape>(key_block, a))};
  }

  // What the CTA works on, as its loader lets the others know; key block -1 ends it.
  __device__ __forceinline__ void publish(uint32_t at) const {
    ptx::store_shared(at, uint4{static_cast<uint32_t>(key_block), static_cast<uint32_t>(kv_head),
                                static_cast<uint32_t>(batch), static_cast<uint32_t>(steps)});
  }
  static __device__ __forceinline__ Work published(uint32_t at) {
    const uint4 w = ptx::load_shared_uint4(at);
    return {static_cast<int>(w.x), static_cast<int>(w.y), static_cast<int>(w.z), static_cast<int>(w.w)};
  }
};

// The steps of a key block: its query tiles, upwards from the first that sees a key of it, for one query head
// after the other. Everyone in the CTA walks so.
struct QueryWalk {
  int first_tile;
  int tile, head;  // of the batch
  int index;       // of the tile among those of all heads
  int left;        // steps, this one included

  template <class Shape>
  static __device__ __forceinline__ QueryWalk of(Work work, const BackwardArgs& a) {
    QueryWalk walk;
    walk.first_tile = sm90::first_tile<Shape>(work.key_block, a);
    walk.tile = walk.first_tile;
    walk.head = work.kv_head * a.heads_per_kv;
    walk.index = (work.batch * a.heads + walk.head) * a.query_tiles + walk.tile;
    walk.left = work.steps;
    return walk;
  }
  __device__ __forceinline__ void next(const BackwardArgs& a) {
    --left, ++index;
    if (++tile == a.query_tiles) tile = first_tile, ++head, index += first_tile;
  }
};

// The highest key block that sees a query tile, which is the first to add to its dQ; the last is block 0.
template <class Shape>
__device__ __forceinline__ int first_adder(int tile, const BackwardArgs& a) {
  constexpr int kTilesPerBlock = Shape::kBlockK / Shape::kBlockQ;
  return a.causal ? tile / kTilesPerBlock : a.key_blocks - 1;
}

}  // namespace tessera::attention::sm90
