// Which key blocks a CTA works on, in which order it meets query tiles, and why CTAs that add to dQ in a
// fixed order do not deadlock.
//
// A work is a block of keys with the query heads that share them, or with a group of these
// (BackwardWorkspace says which): then dK and dV of a block are sums over groups, in a fixed order as well.
// The first groups of all heads of keys come first, then the second ones: when a group wants to add, the one
// before has usually been done for long.
//
// CTAs stay, and take tickets as they become free; within a group tickets go to key blocks downwards. Before
// it adds to query tile i, key block j waits until all blocks above j that see tile i have added. Those have
// smaller tickets: so the block with the smallest unfinished ticket waits for none, a CTA works on its
// tickets in their order, and by induction every block gets done. The same holds for the groups that add to
// dK and dV: of a block, an earlier group has the smaller ticket.
//
// There is little to wait for. A causal block j meets tile i in its step i - j (in units of
// kBlockK), one after block j + 1 has met it. Without a mask block j meets every tile in the same
// step as block j + 1 and has to lag behind it: there, several groups take turns with their
// tickets, so that block j also starts later.
//
// Downwards, causal blocks get longer and longer, and at the end a few CTAs would still work on the longest.
// So the last groups go upwards, all at once, and end with the shortest; there block j adds after those below
// it, and lags a step behind block j - 1.
#pragma once

#include <type_traits>

#include "kernels/attention/sm90/backward_args.cuh"

namespace tessera::attention::sm90 {

// The query tiles that a key block meets
template <class Shape>
__device__ __forceinline__ Span tiles_of(int key_block, int batch, const BackwardArgs& a) {
  if constexpr (Shape::kAnyMask) return a.tiles_of_blocks[batch * a.key_blocks + key_block];
  return {a.causal ? key_block * (Shape::kBlockK / Shape::kBlockQ) : 0, a.query_tiles};
}

template <class Shape>
struct Work {
  int key_block, kv_head, batch;
  int first_head;  // of the query heads
  bool upwards;    // tickets of its group
  int steps;       // query tiles that the block meets, times query heads
  Span tiles;      // those

  static __device__ __forceinline__ Work none() { return {-1, 0, 0, 0, false, 0, {0, 0}}; }
  static __device__ __forceinline__ Work of(uint32_t ticket, const BackwardArgs& a) {
    const auto blocks = static_cast<uint32_t>(a.key_blocks),
               at_once = static_cast<uint32_t>(a.groups_at_once),
               descending = static_cast<uint32_t>(a.descending_groups);
    const bool upwards = ticket >= descending * blocks;
    const uint32_t first_group = upwards ? descending : ticket / (at_once * blocks) * at_once;
    const uint32_t groups = upwards ? a.works / blocks - descending : min(at_once, descending - first_group);
    ticket -= first_group * blocks;
    const uint32_t group = first_group + ticket % groups, turn = ticket / groups;
    const auto key_block = static_cast<int>(upwards ? turn : blocks - 1 - turn);
    const auto all_kv_heads = static_cast<uint32_t>(a.all_kv_heads);
    const auto head = static_cast<int>(group % all_kv_heads), nth = static_cast<int>(group / all_kv_heads);
    const int batch = head / a.kv_heads, kv_head = head - batch * a.kv_heads;
    return of(key_block, kv_head, batch, kv_head * a.heads_per_kv + nth * a.heads_per_work, upwards,
              tiles_of<Shape>(key_block, batch, a), a);
  }
  static __device__ __forceinline__ Work of(int key_block, int kv_head, int batch, int first_head,
                                            bool upwards, Span tiles, const BackwardArgs& a) {
    const int steps = a.heads_per_work * (tiles.end - tiles.begin);
    return {key_block, kv_head, batch, first_head, upwards, steps, tiles};
  }
  // Query heads of these keys that add to dK and dV before this work's
  __device__ __forceinline__ int heads_before(const BackwardArgs& a) const {
    return first_head - kv_head * a.heads_per_kv;
  }
  __device__ __forceinline__ bool has_last_head(const BackwardArgs& a) const {
    return heads_before(a) + a.heads_per_work == a.heads_per_kv;
  }

  // What the CTA works on, as its loader lets the others know; key block -1 ends it.
  __device__ __forceinline__ void publish(uint32_t at) const {
    ptx::store_shared(
        at, uint4{static_cast<uint32_t>(key_block), static_cast<uint32_t>(kv_head),
                  static_cast<uint32_t>(batch), static_cast<uint32_t>(first_head * 2 + (upwards ? 1 : 0))});
    if constexpr (Shape::kAnyMask) ptx::store_shared(at + 16, make_uint2(tiles.begin, tiles.end));
  }
  static __device__ __forceinline__ Work published(uint32_t at, const BackwardArgs& a) {
    const uint4 w = ptx::load_shared_uint4(at);
    const auto key_block = static_cast<int>(w.x), batch = static_cast<int>(w.z);
    Span tiles;
    if constexpr (Shape::kAnyMask) {
      const int2 read = ptx::load_shared_int2(at + 16);
      tiles = {read.x, read.y};
    } else {
      tiles = tiles_of<Shape>(key_block, batch, a);
    }
    return of(key_block, static_cast<int>(w.y), batch, static_cast<int>(w.w / 2), w.w % 2 != 0, tiles, a);
  }
};

// The steps of a key block: its query tiles, upwards from the first, for one query head after the other.
// Everyone in the CTA walks so.
struct WalkOfPlainMask {
  int first_tile;
  int tile, head;  // of the batch
  int index;       // of the tile among those of all heads
  int left;        // steps, this one included
  int adds_as;     // to dQ: see turn_of()

  template <class Shape>
  __device__ __forceinline__ WalkOfPlainMask(const Work<Shape>& work, const BackwardArgs& a)
      : first_tile(work.tiles.begin),
        tile(work.tiles.begin),
        head(work.first_head),
        index((work.batch * a.heads + head) * a.query_tiles + tile),
        left(work.steps),
        adds_as(work.upwards ? ~work.key_block : work.key_block) {}
  __device__ __forceinline__ void next(const BackwardArgs& a) {
    --left, ++index;
    if (++tile == a.query_tiles) tile = first_tile, ++head, index += first_tile;
  }
  __device__ __forceinline__ int64_t index_of(int /*batch*/, const BackwardArgs& /*a*/) const {
    return index;
  }
};
// Tiles end before the sequence does. The index is computed anew, for the warps that move data have no
// register to keep it in.
struct WalkOfAnyMask {
  int first_tile, end_tile;
  int tile, head;
  int left;

  template <class Shape>
  __device__ __forceinline__ WalkOfAnyMask(const Work<Shape>& work, const BackwardArgs& a)
      : first_tile(work.tiles.begin),
        end_tile(work.tiles.end),
        tile(work.tiles.begin),
        head(work.first_head),
        left(work.steps) {}
  __device__ __forceinline__ void next(const BackwardArgs& /*a*/) {
    --left;
    if (++tile == end_tile) tile = first_tile, ++head;
  }
  __device__ __forceinline__ int next_tile() const { return tile + 1 == end_tile ? first_tile : tile + 1; }
  __device__ __forceinline__ int64_t index_of(int batch, const BackwardArgs& a) const {
    return (batch * a.heads + head) * a.query_tiles + tile;
  }
};
template <class Shape>
using QueryWalk = std::conditional_t<Shape::kAnyMask, WalkOfAnyMask, WalkOfPlainMask>;

// A key block among those that add to the dQ of a query tile, one after another
struct Turn {
  int before, last;  // blocks that add before this one, and before the last one

  __device__ __forceinline__ bool finishes() const { return before == last; }
};

// Of any mask: the blocks [last, first], the highest adds first
struct Adders {
  int last, first;

  __device__ __forceinline__ Turn turn_of(int key_block) const { return {first - key_block, first - last}; }
  __device__ __forceinline__ void publish(uint32_t at) const {
    ptx::store_shared(at, make_uint2(last, first));
  }
  static __device__ __forceinline__ Adders published(uint32_t at) {
    const int2 w = ptx::load_shared_int2(at);
    return {w.x, w.y};
  }
};
__device__ __forceinline__ Adders adders_of(int tile, int batch, const BackwardArgs& a) {
  const Span blocks = a.blocks_of_tiles[batch * a.query_tiles + tile];
  return {blocks.begin, blocks.end - 1};
}

// Of a plain mask. adds_as: the key block, or its complement if its tickets go upwards
template <class Shape>
__device__ __forceinline__ Turn turn_of(int tile, int adds_as, const BackwardArgs& a) {
  constexpr int kTilesPerBlock = Shape::kBlockK / Shape::kBlockQ;
  const int highest = a.causal ? tile / kTilesPerBlock : a.key_blocks - 1;
  return {adds_as < 0 ? ~adds_as : highest - adds_as, highest};
}

}  // namespace tessera::attention::sm90
