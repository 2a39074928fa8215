// Before the forward of sparse blocks: as forward_spans.cuh, in places of the list that the query tile walks.
//
// A slice that sees none of its list's tiles walks one of them, of which the mask hides all, so that its
// rows get their results as any other; place -1, a tile past the last key, where the list is empty.
#pragma once

#include "kernels/attention/common/launch.cuh"
#include "kernels/attention/sm90/forward_memory.cuh"

namespace tessera::attention::sm90 {

struct ForwardListsArgs {
  ForwardSchedule schedule;
  ForwardWorkspace to;
  Mask mask;
  Blocks blocks;
  int batch, block_k, shift;

  // What the rows of a slice see
  __device__ __forceinline__ SliceKeys keys_of(const Mask& here, int list, int slice) const {
    const int row = min(slice * kWarpgroupRows, here.queries - 1),
              end_row = min((slice + 1) * kWarpgroupRows, here.queries);
    const Span low = here.keys_of(row), high = here.keys_of(end_row - 1);
    const TileList tiles{blocks.keys_of(list, (row + here.offset) / blocks.size), shift};
    Span places{tiles.place_from(low.begin / block_k), tiles.place_from((high.end + block_k - 1) / block_k)};
    if (places.empty()) {
      places.begin = min(places.begin, tiles.size() - 1);
      places.end = places.begin + 1;
    }
    return {.tiles = places, .whole = {high.begin, low.end}};
  }
};

// The first CTAs take a list of a sequence each, the others rows.
template <class Shape>
__global__ void __launch_bounds__(kSpansThreads)
    forward_lists_kernel(const __grid_constant__ ForwardListsArgs a) {
  const int slices = a.schedule.slices(), tiles = a.schedule.tiles(), lists = a.blocks.lists,
            all_list = blockIdx.x;
  if (all_list >= a.batch * lists) {
    const int row = (all_list - a.batch * lists) * kSpansThreads + threadIdx.x,
              rows = slices * kWarpgroupRows;
    if (row >= a.batch * rows) return;
    const Mask mask = a.mask.of_sequence(row / rows);
    a.to.rows_keys[row] = mask.keys_of(min(row % rows, mask.queries - 1));
    return;
  }
  const Mask mask = a.mask.of_sequence(all_list / lists);
  if (threadIdx.x == 0 && all_list == 0) *a.to.ticket = 0;
  __shared__ unsigned long long total;  // of the lengths
  if (threadIdx.x == 0) total = 0;
  SliceKeys* const slices_keys = a.to.slices_keys + static_cast<int64_t>(all_list) * slices;
  for (int slice = threadIdx.x; slice < slices; slice += kSpansThreads)
    slices_keys[slice] = a.keys_of(mask, all_list % lists, slice);
  __syncthreads();
  int32_t *lengths = a.to.lengths + all_list * tiles, *order = a.to.order + all_list * tiles;
  for (int tile = threadIdx.x; tile < tiles; tile += kSpansThreads) {
    lengths[tile] = slices_keys[a.schedule.first_slice(tile + 1) - 1].tiles.end -
                    slices_keys[a.schedule.first_slice(tile)].tiles.begin;
    atomicAdd(&total, static_cast<unsigned long long>(lengths[tile]));
  }
  __syncthreads();
  const auto rank = [&](int tile) {
    return static_cast<unsigned long long>(lengths[tile]) * tiles > 2 * total ? lengths[tile] : 0;
  };
  for (int tile = threadIdx.x; tile < tiles; tile += kSpansThreads) {
    int place = 0;
    for (int other = 0; other < tiles; ++other)
      place += rank(other) > rank(tile) || (rank(other) == rank(tile) && other < tile);
    order[place] = tile;
  }
}

// Fills in what ForwardArgs has of it.
template <class Shape>
AttnStatus find_listed_spans(ListedForwardArgs* args, const AttnForward& f, CUstream_st* stream) {
  const AttnProblem& p = f.problem;
  const ForwardWorkspace workspace(f.workspace, p);
  args->ticket = workspace.ticket;
  args->order = workspace.order;
  args->slices_keys = workspace.slices_keys;
  args->rows_keys = workspace.rows_keys;
  const ForwardListsArgs lists = {.schedule = args->schedule,
                                  .to = workspace,
                                  .mask = mask_of(p),
                                  .blocks = args->blocks,
                                  .batch = static_cast<int>(p.batch),
                                  .block_k = Shape::kBlockK,
                                  .shift = args->shift};
  const int64_t rows = p.batch * args->schedule.slices() * kWarpgroupRows;
  const auto ctas =
      static_cast<unsigned>(p.batch * args->blocks.lists + (rows + kSpansThreads - 1) / kSpansThreads);
  return launch(forward_lists_kernel<Shape>, ctas, kSpansThreads, 0, stream, lists);
}

}  // namespace tessera::attention::sm90
