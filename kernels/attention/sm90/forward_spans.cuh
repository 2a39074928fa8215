// Before the forward of any mask: what rows, slices and tiles of queries see, and the order of the tiles of
// each sequence: first those that are more than twice as long as the mean, the longest first, or they could
// begin last; then the others as they stand, so that CTAs that work at a time read neighbouring keys.
//
// The first CTAs take a sequence each, and order its tiles. One thread finds the place of a long tile: it
// counts the long tiles that come before. A scan finds the places of the other tiles. The remaining CTAs take
// rows.
#pragma once

#include "kernels/attention/common/launch.cuh"
#include "kernels/attention/sm90/forward_memory.cuh"

namespace tessera::attention::sm90 {

struct ForwardSpansArgs {
  ForwardSchedule schedule;
  ForwardWorkspace to;
  Mask mask;
  int batch, block_k;

  // What the rows of slices [first, last) see
  __device__ __forceinline__ SliceKeys keys_of(const Mask& here, int first, int last) const {
    const int row = first * kWarpgroupRows, end_row = min(last * kWarpgroupRows, here.queries);
    const Span low = here.keys_of(row), high = here.keys_of(end_row - 1);
    const int tile = min(low.begin, here.keys - 1) / block_k;
    return {.tiles = {tile, max((high.end + block_k - 1) / block_k, tile + 1)},
            .whole = {high.begin, low.end}};
  }
};

template <class Shape>
__global__ void __launch_bounds__(kSpansThreads)
    forward_spans_kernel(const __grid_constant__ ForwardSpansArgs a) {
  const int slices = a.schedule.slices(), tiles = a.schedule.tiles(), sequence = blockIdx.x;
  if (sequence >= a.batch) {
    const int row = (sequence - a.batch) * kSpansThreads + threadIdx.x, rows = slices * kWarpgroupRows;
    if (row >= a.batch * rows) return;
    const Mask mask = a.mask.of_sequence(row / rows);
    a.to.rows_keys[row] = mask.keys_of(min(row % rows, mask.queries - 1));
    return;
  }
  const Mask mask = a.mask.of_sequence(sequence);
  if (threadIdx.x == 0 && sequence == 0) *a.to.ticket = 0;
  __shared__ unsigned long long total;  // of the lengths
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  for (int slice = threadIdx.x; slice < slices; slice += kSpansThreads)
    a.to.slices_keys[sequence * slices + slice] = a.keys_of(mask, slice, slice + 1);
  int32_t *lengths = a.to.lengths + sequence * tiles, *order = a.to.order + sequence * tiles;
  unsigned long long own_length = 0;
  for (int tile = threadIdx.x; tile < tiles; tile += kSpansThreads) {
    const Span keys = a.keys_of(mask, a.schedule.first_slice(tile), a.schedule.first_slice(tile + 1)).tiles;
    lengths[tile] = keys.end - keys.begin;
    own_length += static_cast<unsigned>(lengths[tile]);
  }
  for (int step = 16; step > 0; step /= 2) own_length += __shfl_xor_sync(~0u, own_length, step);
  if (threadIdx.x % 32 == 0) atomicAdd(&total, own_length);
  __syncthreads();
  // First the long tiles by length, the earlier of equal ones first; then the others in their order
  const auto is_long = [&](int tile) {
    return static_cast<unsigned long long>(lengths[tile]) * tiles > 2 * total;
  };
  const int each = (tiles + kSpansThreads - 1) / kSpansThreads,
            begin = min(static_cast<int>(threadIdx.x) * each, tiles), end = min(begin + each, tiles);
  int others = 0;
  for (int tile = begin; tile < end; ++tile) others += !is_long(tile);
  __shared__ int before[2][kSpansThreads];  // [.][i]: how many other tiles threads 0 to i have
  int from = 0;
  before[0][threadIdx.x] = others;
  for (int step = 1; step < kSpansThreads; step *= 2) {
    __syncthreads();
    const int own = before[from][threadIdx.x];
    before[1 - from][threadIdx.x] =
        static_cast<int>(threadIdx.x) < step ? own : own + before[from][threadIdx.x - step];
    from = 1 - from;
  }
  __syncthreads();
  int place_of_other = tiles - before[from][kSpansThreads - 1] + before[from][threadIdx.x] - others;
  for (int tile = begin; tile < end; ++tile) {
    if (!is_long(tile)) {
      order[place_of_other++] = tile;
      continue;
    }
    int place = 0;
    for (int other = 0; other < tiles; ++other)
      place += is_long(other) &&
               (lengths[other] > lengths[tile] || (lengths[other] == lengths[tile] && other < tile));
    order[place] = tile;
  }
}

// Fills in what ForwardArgs has of it.
template <class Shape>
AttnStatus find_spans(ForwardArgs* args, const AttnForward& f, CUstream_st* stream) {
  const AttnProblem& p = f.problem;
  const ForwardWorkspace workspace(f.workspace, p, Shape::kConsumers);
  args->ticket = workspace.ticket;
  args->order = workspace.order;
  args->slices_keys = workspace.slices_keys;
  args->rows_keys = workspace.rows_keys;
  const ForwardSpansArgs spans = {.schedule = args->schedule,
                                  .to = workspace,
                                  .mask = mask_of(p),
                                  .batch = static_cast<int>(p.batch),
                                  .block_k = Shape::kBlockK};
  const int64_t rows = p.batch * args->schedule.slices() * kWarpgroupRows;
  const auto ctas = static_cast<unsigned>(p.batch + (rows + kSpansThreads - 1) / kSpansThreads);
  return launch(forward_spans_kernel<Shape>, ctas, kSpansThreads, 0, stream, spans);
}

}  // namespace tessera::attention::sm90
