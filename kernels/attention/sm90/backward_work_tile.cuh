// Which key blocks a CTA works on, in which order it meets query tiles, and why CTAs that add to dQ in a
// fixed order do not deadlock.
//
// A work tile is a block of keys with the query heads that share them, or with a group of these heads
// (BackwardWorkspace says which). With groups, dK and dV of a block are sums over groups, in a fixed order
// as well. The first groups of all key heads come first, then the second ones: when a group is ready to
// add, the one before has usually finished long ago.
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
// Downwards, causal blocks get longer and longer, and at the end a few CTAs would still work on the
// longest. So the last groups go upwards, all at once, and end with the shortest; there block j adds after
// those below it, and lags a step behind block j - 1.
//
// With at least as many key blocks as CTAs, every wave of them would start farther apart: what they read at
// a time no longer fits L2, and at 131,072 tokens the memory is the limit. So two groups take turns, wave
// by wave. The first goes downwards, as above; its CTAs start together, two query tiles apart, and end one
// after the other, as far apart. The second goes upwards, and its blocks meet their query tiles downwards,
// from the last one on: as CTAs become free they start at this distance, keep it, and end together. Of
// documents only the long ones gain by it, so it depends on their lengths: see in_waves().
#pragma once

#include "kernels/attention/sm90/backward_args.cuh"

namespace tessera::attention::sm90 {

// The query tiles that a key block meets
template <class Shape>
__device__ __forceinline__ Span tiles_of(int key_block, int batch, const BackwardArgs& a) {
  if constexpr (Shape::kAnyMask) return a.tiles_of_blocks[batch * a.key_blocks + key_block];
  return {a.causal ? key_block * (Shape::kBlockK / Shape::kBlockQ) : 0, a.query_tiles};
}

// Whether key blocks go in waves. Within documents, as long as they are to the most of the work: the mean
// of a block's query tiles, weighted by them, has to be what it is in a document of 1.5 waves. Measured at
// head dim 128 and 131,072 tokens: documents of 65,536 are a third faster in waves, of 16,384 4% slower. A
// thread finds it out for its CTA.
template <class Shape>
__device__ __forceinline__ void find_in_waves(const BackwardArgs& a) {
  if constexpr (Shape::kAnyMask && !Shape::kListed) {
    uint64_t sum = 0, squares = 0;
    for (int sequence = 0; sequence < a.all_kv_heads / a.kv_heads; ++sequence)
      sum += a.block_tiles[sequence].sum, squares += a.block_tiles[sequence].squares;
    // Of a document of n blocks, one of which has n t tiles at most, it is 2 / 3 n t.
    const bool is_long = squares * static_cast<uint64_t>(a.key_blocks) >=
                         sum * static_cast<uint64_t>(a.query_tiles) * static_cast<uint64_t>(a.wave_blocks);
    ptx::store_shared(BackwardMemory<Shape>().in_waves(),
                      make_uint2(a.wave_blocks > 0 && is_long ? 1 : 0, 0));
  }
}
template <class Shape>
__device__ __forceinline__ bool in_waves(const BackwardArgs& a) {
  if constexpr (Shape::kAnyMask) return ptx::load_shared_uint2(BackwardMemory<Shape>().in_waves()).x != 0;
  return a.wave_blocks > 0;
}

template <class Shape>
struct WorkTile {
  int key_block, kv_head, batch;
  int first_head;  // of the query heads
  bool upwards;    // tickets of its group
  Span tiles;      // of queries, which the block meets

  static __device__ __forceinline__ WorkTile none() { return {-1, 0, 0, 0, false, {0, 0}}; }
  static __device__ __forceinline__ WorkTile of(uint32_t ticket, const BackwardArgs& a) {
    return in_waves<Shape>(a) ? of_waves(ticket, a) : of_groups(ticket, a);
  }
  static __device__ __forceinline__ WorkTile of_groups(uint32_t ticket, const BackwardArgs& a) {
    const auto blocks = static_cast<uint32_t>(a.key_blocks),
               at_once = static_cast<uint32_t>(a.groups_at_once),
               descending = static_cast<uint32_t>(a.descending_groups);
    const bool upwards = ticket >= descending * blocks;
    const uint32_t first_group = upwards ? descending : ticket / (at_once * blocks) * at_once;
    const uint32_t groups =
        upwards ? a.work_tiles / blocks - descending : min(at_once, descending - first_group);
    ticket -= first_group * blocks;
    return of_group(first_group + ticket % groups, ticket / groups, upwards, a);
  }
  // Groups of the same keys are not among those that take turns: one would wait for the sums of the other.
  static __device__ __forceinline__ WorkTile of_waves(uint32_t ticket, const BackwardArgs& a) {
    const auto blocks = static_cast<uint32_t>(a.key_blocks), heads = static_cast<uint32_t>(a.all_kv_heads),
               wave = static_cast<uint32_t>(a.wave_blocks);
    const uint32_t before = ticket / (heads * blocks) * heads;  // groups, of all heads
    ticket -= before * blocks;
    const uint32_t first = ticket / (2 * blocks) * 2;
    ticket -= first * blocks;
    if (heads - first < 2) return of_group(before + first, ticket, false, a);
    const uint32_t begin = ticket / (2 * wave) * wave, size = min(wave, blocks - begin);
    ticket -= 2 * begin;
    const bool upwards = ticket >= size;
    const uint32_t in_wave = upwards ? ticket - size : ticket;
    return of_group(before + first + (upwards ? 1 : 0), begin + in_wave, upwards, a);
  }
  static __device__ __forceinline__ WorkTile of_group(uint32_t group, uint32_t turn, bool upwards,
                                                      const BackwardArgs& a) {
    const auto key_block = static_cast<int>(upwards ? turn : a.key_blocks - 1 - turn);
    const auto all_kv_heads = static_cast<uint32_t>(a.all_kv_heads);
    const auto head = static_cast<int>(group % all_kv_heads), nth = static_cast<int>(group / all_kv_heads);
    const int batch = head / a.kv_heads, kv_head = head - batch * a.kv_heads;
    const int first_head = kv_head * a.heads_per_kv + nth * a.heads_per_work_tile;
    return {key_block, kv_head, batch, first_head, upwards, tiles_of<Shape>(key_block, batch, a)};
  }
  // Each a query tile of a query head
  __device__ __forceinline__ int steps(const BackwardArgs& a) const {
    return a.heads_per_work_tile * tiles.size();
  }
  // Query heads of these keys that add to dK and dV before this work tile's
  __device__ __forceinline__ int heads_before(const BackwardArgs& a) const {
    return first_head - kv_head * a.heads_per_kv;
  }
  __device__ __forceinline__ bool has_last_head(const BackwardArgs& a) const {
    return heads_before(a) + a.heads_per_work_tile == a.heads_per_kv;
  }

  // The loader tells the other warps which work tile the CTA has; key block -1 ends it.
  __device__ __forceinline__ void publish(uint32_t at) const {
    ptx::store_shared(
        at, uint4{static_cast<uint32_t>(key_block), static_cast<uint32_t>(kv_head),
                  static_cast<uint32_t>(batch), static_cast<uint32_t>(first_head * 2 + (upwards ? 1 : 0))});
    if constexpr (Shape::kAnyMask) ptx::store_shared(at + 16, make_uint2(tiles.begin, tiles.end));
  }
  static __device__ __forceinline__ WorkTile published(uint32_t at, const BackwardArgs& a) {
    const uint4 w = ptx::load_shared_uint4(at);
    const auto key_block = static_cast<int>(w.x), batch = static_cast<int>(w.z);
    Span tiles;
    if constexpr (Shape::kAnyMask) {
      const int2 read = ptx::load_shared_int2(at + 16);
      tiles = {read.x, read.y};
    } else {
      tiles = tiles_of<Shape>(key_block, batch, a);
    }
    return {key_block, static_cast<int>(w.y), batch, static_cast<int>(w.w / 2), w.w % 2 != 0, tiles};
  }
};

// With kListed
template <class Shape>
requires(Shape::kListed) struct WorkTile<Shape> : ListedWork {
  struct Words {
    uint4 first, second;
  };
  static_assert(sizeof(Words) == sizeof(ListedWork));

  static __device__ __forceinline__ WorkTile none() { return {ListedWork{.key_block = -1}}; }
  static __device__ __forceinline__ WorkTile of(uint32_t ticket, const ListedBackwardArgs& a) {
    const auto* const words = reinterpret_cast<const uint4*>(a.work + ticket);
    return {__builtin_bit_cast(ListedWork, Words{words[0], words[1]})};
  }
  __device__ __forceinline__ int steps(const ListedBackwardArgs& /*a*/) const { return tiles.size(); }
  __device__ __forceinline__ int heads_before(const ListedBackwardArgs& a) const {
    return head - kv_head * a.heads_per_kv;
  }
  __device__ __forceinline__ bool has_last_head(const ListedBackwardArgs& a) const {
    return heads_before(a) + 1 == a.heads_per_kv;
  }
  __device__ __forceinline__ void publish(uint32_t at) const {
    const auto words = __builtin_bit_cast(Words, static_cast<const ListedWork&>(*this));
    ptx::store_shared(at, words.first), ptx::store_shared(at + 16, words.second);
  }
  static __device__ __forceinline__ WorkTile published(uint32_t at, const ListedBackwardArgs& /*a*/) {
    return {
        __builtin_bit_cast(ListedWork, Words{ptx::load_shared_uint4(at), ptx::load_shared_uint4(at + 16)})};
  }
};

// The steps of a work tile, in the order in which every warp of the CTA walks.
//
// All tiles of a query head, then those of the next one: so the tiles that all CTAs need at a time fit L2.
// But within documents all heads of a tile, then those of the next one. For where documents meet, a block
// that sees few tiles waits for one that sees many, and must not be at its second head while that is still
// at the first.
template <class Shape>
struct QueryWalk {
  int tile, first_tile, end_tile;
  int head;        // of the batch
  int heads_left;  // of the work tile, or within documents of the query tile; this one included
  int adds_as;     // to dQ: see turn_of()

  __device__ __forceinline__ QueryWalk(const WorkTile<Shape>& work, const BackwardArgsOf<Shape>& a)
      : tile(work.tiles.begin),
        first_tile(work.tiles.begin),
        end_tile(work.tiles.end),
        head(work.first_head),
        heads_left(a.heads_per_work_tile),
        adds_as(work.upwards ? ~work.key_block : work.key_block) {
    if (downwards(a)) first_tile = tile = work.tiles.end - 1, end_tile = work.tiles.begin - 1;
  }
  __device__ __forceinline__ bool downwards(const BackwardArgsOf<Shape>& a) const {
    return a.wave_blocks > 0 && adds_as < 0;
  }
  __device__ __forceinline__ bool begins(const BackwardArgsOf<Shape>& a) const {
    return tile == first_tile && heads_left == a.heads_per_work_tile;
  }
  __device__ __forceinline__ bool ended() const { return tile == end_tile; }
  __device__ __forceinline__ void next(const BackwardArgsOf<Shape>& a) {
    const int on = downwards(a) ? -1 : 1;
    if (Shape::kAnyMask && a.mask.documents != nullptr) {
      ++head;
      if (--heads_left == 0) tile += on, head -= a.heads_per_work_tile, heads_left = a.heads_per_work_tile;
    } else {
      if ((tile += on) == end_tile && --heads_left > 0) tile = first_tile, ++head;
    }
  }
  // The tile's index among those of all heads. Computed anew: warps that move data have no register for it.
  __device__ __forceinline__ int index(int batch, const BackwardArgsOf<Shape>& a) const {
    return index_of(tile, batch, a);
  }
  __device__ __forceinline__ int index_of(int query_tile, int batch, const BackwardArgsOf<Shape>& a) const {
    return (batch * a.heads + head) * a.query_tiles + query_tile;
  }
};

// With kListed a work tile has one query head, and `tile` is a place in the list of its key block.
template <class Shape>
requires(Shape::kListed) struct QueryWalk<Shape> {
  int tile, first_tile, end_tile;
  int head;  // of the batch

  __device__ __forceinline__ QueryWalk(const WorkTile<Shape>& work, const ListedBackwardArgs& /*a*/)
      : tile(work.tiles.begin), first_tile(work.tiles.begin), end_tile(work.tiles.end), head(work.head) {}
  __device__ __forceinline__ bool begins(const ListedBackwardArgs& /*a*/) const { return tile == first_tile; }
  __device__ __forceinline__ bool ended() const { return tile == end_tile; }
  __device__ __forceinline__ void next(const ListedBackwardArgs& /*a*/) { ++tile; }
  __device__ __forceinline__ int index_of(int query_tile, int batch, const ListedBackwardArgs& a) const {
    return (batch * a.heads + head) * a.query_tiles + query_tile;
  }
};

// A key block among those that add to the dQ of a query tile, one after another
struct Turn {
  int before, last;  // blocks that add before this one, and before the last one

  __device__ __forceinline__ bool finishes() const { return before == last; }
};

// The key blocks [last, first] that add to dQ of a query tile, with any mask. The highest adds first; where
// tickets go upwards, the lowest. adds_as: as for turn_of()
struct Adders {
  int last, first;

  __device__ __forceinline__ Turn turn_of(int adds_as) const {
    return {adds_as < 0 ? ~adds_as - last : first - adds_as, first - last};
  }
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

// With kListed: a step of a work tile, of the query tile at a place of its key block's list
struct ListedStep {
  int tile;
  Turn turn;

  template <class Shape>
  static __device__ __forceinline__ ListedStep of(const WorkTile<Shape>& work, int place,
                                                  const ListedBackwardArgs& a) {
    const int list = a.list_of(work.kv_head), block = work.key_block >> a.key_shift;
    const int at = a.blocks.seen_begins[list * (a.blocks.key_blocks + 1) + block] + (place >> a.query_shift);
    const int tile =
        (a.blocks.queries[at] << a.query_shift) + (place & ((1 << a.query_shift) - 1)) - a.tiles_before;
    const int own = (a.blocks.places[at] << a.key_shift) + (work.key_block & ((1 << a.key_shift) - 1));
    const Span all = a.places_of_tiles[(work.batch * a.blocks.lists + list) * a.query_tiles + tile];
    return {tile, {all.end - 1 - own, all.size() - 1}};  // tickets go downwards
  }
  // The loader tells those who multiply, in the place of Adders.
  __device__ __forceinline__ void publish(uint32_t at) const {
    ptx::store_shared(at, make_uint2(tile, turn.last * 2 + (turn.finishes() ? 1 : 0)));
  }
};
struct PublishedStep {
  int tile, last;
  bool finishes;

  static __device__ __forceinline__ PublishedStep at(uint32_t at) {
    const int2 w = ptx::load_shared_int2(at);
    return {w.x, w.y / 2, w.y % 2 != 0};
  }
};

// The turn of a key block with a plain mask. adds_as: the block, or its complement if its tickets go upwards
template <class Shape>
__device__ __forceinline__ Turn turn_of(int tile, int adds_as, const BackwardArgs& a) {
  constexpr int kTilesPerBlock = Shape::kBlockK / Shape::kBlockQ;
  const int highest = a.causal ? tile / kTilesPerBlock : a.key_blocks - 1;
  return {adds_as < 0 ? ~adds_as : highest - adds_as, highest};
}

}  // namespace tessera::attention::sm90
