// Before the main kernel: delta = rowsum(dO o O) and LSE log2(e) of each row; zeros in its counters, and
// in dQ where a query sees no key, since no key block may come by.
#pragma once

#include "kernels/attention/common/dot.cuh"
#include "kernels/attention/sm80/backward_args.cuh"
#include "kernels/attention/sm80/mask.cuh"

namespace tessera::attention::sm80 {

inline constexpr int kRowsThreads = 256;

// Whether no key block comes by for a query
__device__ __forceinline__ bool sees_nothing(const BackwardArgs& a, int b, int /*h*/, int query) {
  return a.mask.of_sequence(b).keys_of(query).empty();
}
struct ListedRowsArgs : WithBlocks<BackwardArgs> {
  int block_q, block_k;  // of the main kernel's tiles
};
__device__ __forceinline__ bool sees_nothing(const ListedRowsArgs& a, int b, int h, int query) {
  const Mask mask = a.mask.of_sequence(b);
  const int first = query / a.block_q * a.block_q;
  const Span tiles = mask.keys_of({first, min(first + a.block_q, mask.queries)}).tiles(a.block_k);
  const TileList list{a.blocks.keys_of(a.blocks.list_of(h), (query + a.offset) / a.blocks.size),
                      a.blocks.shift_of(a.block_k)};
  return mask.keys_of(query).empty() || list.place_from(tiles.begin) >= list.place_from(tiles.end);
}

// kHeadDim / 8 neighbouring threads take a row, of which the last have no columns where heads are narrower.
template <int kHeadDim, bool kWhole, bool kAnyMask, class Args = BackwardArgs>
__global__ void __launch_bounds__(kRowsThreads) backward_rows_kernel(const Args a, int64_t rows) {
  constexpr int kLanes = kHeadDim / 8;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kRowsThreads + threadIdx.x;
  const int64_t row = thread / kLanes;
  const int lane = threadIdx.x % kLanes;
  const int head_index = static_cast<int>(row / a.padded_tokens), t = static_cast<int>(row % a.padded_tokens);
  const int b = head_index / a.heads, h = head_index % a.heads;
  const bool inside = row < rows, real = inside && t < a.tokens;

  float sum = 0;
  if (real && (kWhole || lane * 8 < a.head_dim)) {
    const auto out = reinterpret_cast<const uint4*>(a.out.head_begin(b, h) + t * a.out.row);
    const auto dout = reinterpret_cast<const uint4*>(a.dout.head_begin(b, h) + t * a.dout.row);
    sum = dot8(out[lane], dout[lane]);
    if (kAnyMask && sees_nothing(a, b, h, t))
      reinterpret_cast<uint4*>(a.dq.head_begin(b, h) + t * a.dq.row)[lane] = {0, 0, 0, 0};
  }
#pragma unroll
  for (int other = kLanes / 2; other > 0; other /= 2) sum += __shfl_xor_sync(~0u, sum, other);

  if (inside && lane == 0) {
    a.delta[row] = sum;
    a.log2_sum_exp[row] =
        real ? log2_sum_exp_of(a.lse[static_cast<int64_t>(head_index) * a.tokens + t]) : INFINITY;
  }
  const int64_t counters = 1 + rows / a.padded_tokens * a.query_blocks;
  if (thread < counters) a.counters[thread] = 0;  // fewer than there are threads: a tile has many rows
}

}  // namespace tessera::attention::sm80
