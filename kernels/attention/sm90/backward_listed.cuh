// Before the backward of sparse blocks: which places of the list of a query tile are of key blocks that the
// mask shows to it, and so which places of the list of a key block are of query tiles that it meets.
//
// find_spans_kernel() has found the key blocks [begin, end) that the mask shows to each query tile: neither
// falls. A key block meets the listed query tiles with begin <= block < end, so they follow one another in
// its list. Query tiles and key blocks that meet nothing have no work: their dQ, or dK and dV, are filled
// with zeros here.
#pragma once

#include "kernels/attention/common/launch.cuh"
#include "kernels/attention/sm90/backward_args.cuh"

namespace tessera::attention::sm90 {

struct BackwardListsArgs {
  ListedBackwardArgs a;
  Span *places_of_tiles, *tiles_of_blocks;
  View<bf16> dq, dk, dv;
  int head_dim, block_q, block_k;
};

// A CTA takes a list of a sequence.
template <class Shape>
__global__ void __launch_bounds__(kSpansThreads)
    backward_lists_kernel(const __grid_constant__ BackwardListsArgs args) {
  const ListedBackwardArgs& a = args.a;
  const int64_t all_list = blockIdx.x;
  const int list = blockIdx.x % a.blocks.lists, batch = blockIdx.x / a.blocks.lists;
  const Span* const hulls = a.blocks_of_tiles + int64_t{batch} * a.query_tiles;
  for (int tile = threadIdx.x; tile < a.query_tiles; tile += kSpansThreads) {
    const TileList keys{a.blocks.keys_of(list, (tile + a.tiles_before) >> a.query_shift), a.key_shift};
    args.places_of_tiles[all_list * a.query_tiles + tile] = {keys.place_from(hulls[tile].begin),
                                                             keys.place_from(hulls[tile].end)};
  }
  for (int block = threadIdx.x; block < a.key_blocks; block += kSpansThreads) {
    const TileList queries{a.blocks.queries_of(list, block >> a.key_shift), a.query_shift};
    const auto first_place = [&](auto&& reached) {  // of query tiles, those past the last as the last
      return first_where(queries.size(), [&](int place) {
        const int tile = queries[place] - a.tiles_before;
        return tile >= a.query_tiles || (tile >= 0 && reached(hulls[tile]));
      });
    };
    args.tiles_of_blocks[all_list * a.key_blocks + block] = {
        first_place([&](Span blocks) { return blocks.end > block; }),
        first_place([&](Span blocks) { return blocks.begin > block; })};
  }
}

// A CTA takes a query tile, or a key block, of a list of a sequence.
template <class Shape>
__global__ void __launch_bounds__(kWarpgroup)
    fill_unseen_kernel(const __grid_constant__ BackwardListsArgs args) {
  const ListedBackwardArgs& a = args.a;
  const int list = blockIdx.y, batch = blockIdx.z, all_list = batch * a.blocks.lists + list;
  const auto fill = [&](const View<bf16>& to, int heads, int first, int rows) {
    const int quads = args.head_dim / 8;
    for (int i = threadIdx.x; i < heads * rows * quads; i += kWarpgroup) {
      const int head = list * heads + i / (rows * quads), row = first + i / quads % rows;
      *reinterpret_cast<uint4*>(to.head_begin(batch, head) + row * to.row + i % quads * 8) = {};
    }
  };
  const auto tile = static_cast<int>(blockIdx.x);
  if (tile < a.query_tiles) {
    if (!args.places_of_tiles[all_list * a.query_tiles + tile].empty()) return;
    const int first = tile * args.block_q;
    fill(args.dq, a.blocks.heads, first, min(args.block_q, a.tokens - first));
  } else {
    const int block = tile - a.query_tiles, first = block * args.block_k;
    if (!args.tiles_of_blocks[all_list * a.key_blocks + block].empty()) return;
    for (const View<bf16>* to : {&args.dk, &args.dv})
      fill(*to, a.blocks.kv_heads, first, min(args.block_k, a.kv_tokens - first));
  }
}

template <class Shape>
AttnStatus find_listed_tiles(ListedBackwardArgs* args, const AttnBackward& f,
                             const BackwardWorkspace& workspace, CUstream_st* stream) {
  args->places_of_tiles = workspace.places_of_tiles;
  const BackwardListsArgs lists = {.a = *args,
                                   .places_of_tiles = workspace.places_of_tiles,
                                   .tiles_of_blocks = workspace.tiles_of_blocks,
                                   .dq = view<bf16>(f.dq),
                                   .dk = view<bf16>(f.dk),
                                   .dv = view<bf16>(f.dv),
                                   .head_dim = f.problem.head_dim,
                                   .block_q = Shape::kBlockQ,
                                   .block_k = Shape::kBlockK};
  const auto batch = static_cast<unsigned>(f.problem.batch),
             of_sequence = static_cast<unsigned>(args->blocks.lists);
  const AttnStatus status =
      launch(backward_lists_kernel<Shape>, batch * of_sequence, kSpansThreads, 0, stream, lists);
  if (status != ATTN_OK) return status;
  const dim3 grid(static_cast<unsigned>(args->query_tiles + args->key_blocks), of_sequence, batch);
  return launch(fill_unseen_kernel<Shape>, grid, kWarpgroup, 0, stream, lists);
}

}  // namespace tessera::attention::sm90
