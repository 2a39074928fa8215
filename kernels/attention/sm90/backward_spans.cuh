// Before the backward of any mask: which key blocks add to the dQ of each query tile, and so which query
// tiles each key block meets. One table follows from the other, so that loaders, senders and adders agree.
//
// Both are spans that never fall, as Mask's are. Every tile has a block and every block a tile, whether they
// see anything or not: dQ of a tile that sees nothing, dK and dV of a block that nobody sees, have to be
// written, too. For that the first tile begins at key 0 and the last ends at the last key, and each ends no
// earlier than where the next one begins: of dealt queries whole documents may be missing between them.
#pragma once

#include "kernels/attention/mask.h"
#include "kernels/attention/sm90/workspace.h"

namespace tessera::attention::sm90 {

// A CTA takes a sequence.
template <class Shape>
__global__ void __launch_bounds__(kSpansThreads)
    find_spans_kernel(Mask all, int query_tiles, int key_blocks, Span* blocks_of_tiles, Span* tiles_of_blocks,
                      BlockTiles* block_tiles) {
  __shared__ unsigned long long sum, squares;
  if (threadIdx.x == 0) sum = squares = 0;
  const Mask mask = all.of_sequence(blockIdx.x);
  blocks_of_tiles += static_cast<int64_t>(blockIdx.x) * query_tiles;
  tiles_of_blocks += static_cast<int64_t>(blockIdx.x) * key_blocks;
  for (int tile = threadIdx.x; tile < query_tiles; tile += kSpansThreads) {
    Span keys = mask.keys_of({tile * Shape::kBlockQ, min((tile + 1) * Shape::kBlockQ, mask.queries)});
    if (tile == 0) keys.begin = 0;
    // Keys between two tiles, which neither sees, are met by the first of them.
    keys.end =
        tile == query_tiles - 1 ? mask.keys : max(keys.end, mask.keys_of((tile + 1) * Shape::kBlockQ).begin);
    const int last = min(keys.begin, mask.keys - 1) / Shape::kBlockK;
    const int first = max(keys.end - 1, 0) / Shape::kBlockK;
    blocks_of_tiles[tile] = {last, max(first, last) + 1};
  }
  __syncthreads();
  const auto first_tile = [&](auto&& reached) {
    return first_where(query_tiles, [&](int tile) { return reached(blocks_of_tiles[tile]); });
  };
  for (int block = threadIdx.x; block < key_blocks; block += kSpansThreads) {
    const Span tiles = {first_tile([&](Span blocks) { return blocks.end > block; }),
                        first_tile([&](Span blocks) { return blocks.begin > block; })};
    tiles_of_blocks[block] = tiles;
    const auto count = static_cast<unsigned long long>(tiles.size());
    atomicAdd(&sum, count);
    atomicAdd(&squares, count * count);
  }
  __syncthreads();
  if (threadIdx.x == 0) block_tiles[blockIdx.x] = {sum, squares};
}

}  // namespace tessera::attention::sm90
