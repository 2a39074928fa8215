// Sparse blocks: see AttnBlocks of attention.h. A query sees a key if the mask shows it (mask.h) and the list
// of the query's block has the key's block. Lists rise, so the listed blocks that touch an interval of keys
// follow one another. So kernels walk the places of a list where they otherwise walk tiles.
#pragma once

#include "kernels/attention/mask.h"

namespace tessera::attention {

inline constexpr int kSmallestBlock = 128;  // a whole number of tiles of every kernel

// The list of the blocks that one block sees, or of those that see it
struct BlockList {
  const int32_t* blocks;
  int count;

  TESSERA_HOST_DEVICE int operator[](int place) const { return blocks[place]; }
  // The places of blocks `first` and later
  TESSERA_HOST_DEVICE int place_from(int first) const {
    return first_where(count, [&](int place) { return blocks[place] >= first; });
  }
  TESSERA_HOST_DEVICE Span places_within(Span span) const {
    return {place_from(span.begin), place_from(span.end)};
  }
  TESSERA_HOST_DEVICE bool contains(int block) const {
    const int place = place_from(block);
    return place < count && blocks[place] == block;
  }
};

// A list by tiles: a block has 1 << shift of them, and places count the tiles of the listed blocks.
struct TileList {
  BlockList list;
  int shift;

  TESSERA_HOST_DEVICE int size() const { return list.count << shift; }
  TESSERA_HOST_DEVICE int within_block(int i) const { return i & ((1 << shift) - 1); }
  TESSERA_HOST_DEVICE int operator[](int place) const {
    return (list[place >> shift] << shift) + within_block(place);
  }
  // The place of `tile`, or of the first behind it
  TESSERA_HOST_DEVICE int place_from(int tile) const {
    const int block = tile >> shift, place = list.place_from(block);
    return (place << shift) + (place < list.count && list[place] == block ? within_block(tile) : 0);
  }
};

// The lists of a call
struct Blocks {
  int size = 0;  // 0: every block is seen
  int lists = 1, query_blocks = 0, key_blocks = 0;
  int heads = 1;     // query heads that share a list
  int kv_heads = 1;  // and heads of keys
  const int32_t *begins = nullptr, *keys = nullptr, *seen_begins = nullptr, *queries = nullptr,
                *places = nullptr;

  TESSERA_HOST_DEVICE explicit operator bool() const { return size > 0; }
  TESSERA_HOST_DEVICE int list_of(int64_t head) const { return static_cast<int>(head / heads); }
  TESSERA_HOST_DEVICE BlockList keys_of(int list, int query_block) const {
    return row(begins + int64_t{list} * (query_blocks + 1) + query_block, keys);
  }
  TESSERA_HOST_DEVICE BlockList queries_of(int list, int key_block) const {
    return row(seen_begins + int64_t{list} * (key_blocks + 1) + key_block, queries);
  }
  // How many tiles of this many rows a block has, as a power of two: 1 << shift
  TESSERA_HOST_DEVICE int shift_of(int tile_rows) const {
    int shift = 0;
    while (tile_rows << shift < size) ++shift;
    return shift;
  }
  // For each of queries_of(): the place of the key block in the list of that query block
  TESSERA_HOST_DEVICE const int32_t* places_of(int list, int key_block) const {
    return places + seen_begins[int64_t{list} * (key_blocks + 1) + key_block];
  }
  // Whether the list shows a key to a query at Mask::listed_place_of()
  TESSERA_HOST_DEVICE bool sees(int list, int listed_place, int key) const {
    return size == 0 || keys_of(list, listed_place / size).contains(key / size);
  }

 private:
  static TESSERA_HOST_DEVICE BlockList row(const int32_t* begin, const int32_t* all) {
    return {all + begin[0], begin[1] - begin[0]};
  }
};

template <class Problem>  // AttnProblem or AttnDecodeProblem
Blocks blocks_of(const AttnBlocks& b, const Problem& p) {
  if (b.size == 0) return {};
  return {.size = b.size,
          .lists = b.lists,
          .query_blocks = b.query_blocks,
          .key_blocks = b.key_blocks,
          .heads = static_cast<int>(p.heads / b.lists),
          .kv_heads = static_cast<int>(p.kv_heads / b.lists),
          .begins = b.begins,
          .keys = b.keys,
          .seen_begins = b.seen_begins,
          .queries = b.queries,
          .places = b.places};
}
inline Blocks blocks_of(const AttnProblem& p) { return blocks_of(p.mask.blocks, p); }
inline Blocks blocks_of(const AttnDecodeProblem& p) { return blocks_of(p.blocks, p); }

}  // namespace tessera::attention
