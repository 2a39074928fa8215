// Before the forward of any mask: the query tiles of each sequence, those that see most keys first.
//
// A CTA takes a sequence. The place of a tile is the number of tiles that come before it, counted by one thread:
// T^2 comparisons for T tiles, which at 131,072 tokens are 0.5 million.
#pragma once

#include "kernels/attention/common/launch.cuh"
#include "kernels/attention/sm90/forward_memory.cuh"
#include "kernels/attention/sm90/workspace.h"

namespace tessera::attention::sm90 {

inline constexpr int kOrderThreads = 1024;

template <class Shape>
__global__ void __launch_bounds__(kOrderThreads)
    order_tiles_kernel(const __grid_constant__ ForwardArgs a, int32_t* lengths, int32_t* order) {
  const int tiles = a.schedule.tiles(), batch = blockIdx.x;
  lengths += batch * tiles, order += batch * tiles;
  if (threadIdx.x == 0 && batch == 0) *a.tickets = 0;
  for (int tile = threadIdx.x; tile < tiles; tile += kOrderThreads) {
    const Span keys = key_tiles<Shape, false>(a, batch, a.schedule.first_slice(tile) * kWarpgroupRows,
                                              a.schedule.first_slice(tile + 1) * kWarpgroupRows);
    lengths[tile] = keys.end - keys.begin;
  }
  __syncthreads();
  for (int tile = threadIdx.x; tile < tiles; tile += kOrderThreads) {
    const int length = lengths[tile];
    int place = 0;
    for (int other = 0; other < tiles; ++other)
      place += lengths[other] > length || (lengths[other] == length && other < tile);
    order[place] = tile;
  }
}

// Fills in what ForwardArgs has of it.
template <class Shape>
AttnStatus order_tiles(ForwardArgs* args, const AttnForward& f, CUstream_st* stream) {
  const ForwardWorkspace workspace(f.workspace, f.problem);
  args->tickets = workspace.ticket;
  args->order = workspace.order;
  return launch(order_tiles_kernel<Shape>, static_cast<unsigned>(f.problem.batch), kOrderThreads, 0, stream,
                *args, workspace.lengths, workspace.order);
}

}  // namespace tessera::attention::sm90
