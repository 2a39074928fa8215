// Before the backward of sparse blocks: which places of the list of a query tile are of key blocks that the
// mask shows to it; so which places of the list of a key block are of query tiles that it meets; and which
// work each ticket is.
//
// find_spans_kernel() has found the key blocks [begin, end) that the mask shows to each query tile: neither
// falls. A key block meets the listed query tiles with begin <= block < end, so they follow one another in
// its list. Query tiles and key blocks that meet nothing have no work: their dQ, or dK and dV, are filled
// with zeros here.
//
// A key block that all queries see takes as long as a hundred others, and would be the last. So a block that
// meets many tiles is cut into parts, which are work tiles of their own: the last part to end adds up the dK
// and dV of all. There is memory for some parts (BackwardWorkspace), so their length depends on the lists.
// Tickets go to key blocks downwards, as backward_work_tile.cuh asks; parts of a block need no order.
#pragma once

#include <algorithm>

#include "kernels/attention/common/launch.cuh"
#include "kernels/attention/sm90/backward_args.cuh"

namespace tessera::attention::sm90 {

struct BackwardListsArgs {
  ListedBackwardArgs a;
  Span *places_of_tiles, *tiles_of_blocks;
  ListedWork* work;
  int groups_at_once;  // as in BackwardArgs, at most Blocks::kv_heads
  View<bf16> dq, dk, dv;
  int head_dim, block_q, block_k;
};

// The number of parts of a key block that meets so many tiles: 0 if it meets none
__device__ __forceinline__ int parts_of(int tiles, int tiles_of_part) {
  return (tiles + tiles_of_part - 1) / tiles_of_part;
}

// The sums of x over the threads of the CTA before this one; `all`: over all of them
__device__ __forceinline__ int2 sum_before(int2 x, int2* all) {
  __shared__ int2 of_warps[kSpansThreads / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto up_to_lane = [&](int2 sum) {
    for (int apart = 1; apart < 32; apart *= 2) {
      const int2 more = {__shfl_up_sync(~0u, sum.x, apart), __shfl_up_sync(~0u, sum.y, apart)};
      if (lane >= apart) sum.x += more.x, sum.y += more.y;
    }
    return sum;
  };
  const int2 of_warp = up_to_lane(x);
  if (lane == 31) of_warps[warp] = of_warp;
  __syncthreads();
  if (warp == 0) of_warps[lane] = up_to_lane(of_warps[lane]);
  __syncthreads();
  *all = of_warps[kSpansThreads / 32 - 1];
  const int2 before = warp > 0 ? of_warps[warp - 1] : int2{0, 0};
  return {before.x + of_warp.x - x.x, before.y + of_warp.y - x.y};
}

// The CTA of a list writes the work of its tickets. tiles: that each key block meets
__device__ __forceinline__ void write_work(const BackwardListsArgs& args, const Span* tiles, int list,
                                           int batch, int least_tiles_of_part) {
  const ListedBackwardArgs& a = args.a;
  __shared__ int parts_of_list;
  int tiles_of_part = least_tiles_of_part;
  for (;; tiles_of_part *= 2) {
    if (threadIdx.x == 0) parts_of_list = 0;
    __syncthreads();
    for (int block = threadIdx.x; block < a.key_blocks; block += kSpansThreads) {
      const int parts = parts_of(tiles[block].size(), tiles_of_part);
      if (parts > 1) atomicAdd(&parts_of_list, parts);
    }
    __syncthreads();
    const bool fit = parts_of_list <= a.parts;
    __syncthreads();
    if (fit) break;
  }

  // Each thread has some key blocks that follow one another, downwards.
  const int of_thread = (a.key_blocks + kSpansThreads - 1) / kSpansThreads,
            top = a.key_blocks - 1 - static_cast<int>(threadIdx.x) * of_thread,
            end = max(top - of_thread, -1);
  int2 own = {0, 0};  // work tiles of a query head; those that are parts
  for (int block = top; block > end; --block) {
    const int parts = parts_of(tiles[block].size(), tiles_of_part);
    own.x += parts, own.y += parts > 1 ? parts : 0;
  }
  int2 all, before = sum_before(own, &all);
  // Query heads of the same keys follow one another; of different keys some take turns.
  const int heads = a.blocks.heads, kv_heads = a.blocks.kv_heads, of_head = a.key_blocks + a.parts;
  ListedWork* const work = args.work + (int64_t{batch} * a.blocks.lists + list) * heads * of_head;
  for (int block = top; block > end; --block) {
    const Span met = tiles[block];
    const int parts = parts_of(met.size(), tiles_of_part);
    for (int part = 0; part < parts; ++part, ++before.x)
      for (int group = 0; group < heads; ++group) {
        const int first = group / args.groups_at_once * args.groups_at_once,
                  groups = min(args.groups_at_once, heads - first),
                  kv_head = list * kv_heads + group % kv_heads;
        work[first * all.x + before.x * groups + group - first] = {
            .key_block = block,
            .kv_head = kv_head,
            .batch = batch,
            .head = kv_head * a.heads_per_kv + group / kv_heads,
            .tiles = {met.begin + met.size() * part / parts, met.begin + met.size() * (part + 1) / parts},
            .first_part = before.y,
            .part = static_cast<int16_t>(part),
            .parts = static_cast<int16_t>(parts)};
      }
    if (parts > 1) before.y += parts;
  }
  for (int i = all.x * heads + threadIdx.x; i < of_head * heads; i += kSpansThreads) work[i].key_block = -1;
}

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
  __syncthreads();
  constexpr int kLeastQueriesOfPart = 4096;
  write_work(args, args.tiles_of_blocks + all_list * a.key_blocks, list, batch,
             kLeastQueriesOfPart / Shape::kBlockQ);
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
  args->parts = static_cast<int>(BackwardWorkspace::listed_parts_of(f.problem));
  args->places_of_tiles = workspace.places_of_tiles;
  args->work = workspace.listed_work;
  args->part_counters = workspace.listed_counters;
  args->part_sums = workspace.listed_sums;
  args->work_tiles = static_cast<uint32_t>(f.problem.batch * f.problem.heads *
                                           BackwardWorkspace::most_listed_work(f.problem));
  const BackwardListsArgs lists = {.a = *args,
                                   .places_of_tiles = workspace.places_of_tiles,
                                   .tiles_of_blocks = workspace.tiles_of_blocks,
                                   .work = workspace.listed_work,
                                   .groups_at_once = std::min(args->groups_at_once, args->blocks.kv_heads),
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
