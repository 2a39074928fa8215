// Attention of one query of each sequence over its cached keys and values (split-KV: Dao et al.,
// "Flash-Decoding for long-context inference", 2023).
//
//   decode_kernel    each CTA, for the rows of units in its share (work.cuh):   K, V: [keys, D] of one head
//                      each warp takes every kWarps-th tile (heads.cuh)        m, sum: [heads], O: [heads, D]
//                      the warps' sums become one                               O / sum, LSE = m + log2(sum)
//                      -> y where the CTA has all keys of the row, else a part of it in the workspace
//   merge_kernel     each CTA, for a query head whose row has several parts i:
//                      y = sum of 2^(LSE_i - M) O_i / sum of 2^(LSE_i - M),     M = the largest LSE_i
//
// A sink (kernels/attention/sinks.h) adds 2^(s - M) to the denominator of a head's y, once: in the CTA
// that has all keys, else in merge_kernel.
//
// Sums are added in the order of keys and of parts, so that results have the same bits every time. LSE and m
// are in units of log2.
#pragma once

#include <type_traits>

#include "kernels/attention/common/launch.cuh"
#include "kernels/attention/decode/heads.cuh"
#include "kernels/attention/family.h"

namespace tessera::attention::decode {

template <class T, class WorkType = Work>
struct Args {
  View<const T> q, k, v;
  View<T> out;
  WorkType work;
  float *part_out, *part_lse;  // Workspace
  int group, head_dim;
  int turns;       // of a group: kernel.cuh's rows are heads of K and V times turns
  int part_heads;  // heads that a part has room for
  ScoreArgs score;
  const T* sinks;  // [heads]; null: none. As the next, of kernels of general tiles
  Alibi alibi;
  float score_cap;
};

template <class T>
using ListedArgs = Args<T, ListedWork>;
template <class Tile, class T>
using ArgsOf = std::conditional_t<Tile::kListed, ListedArgs<T>, Args<T>>;

template <class Args>
__device__ __forceinline__ float log2_sink(const Args& a, int head) {
  return a.sinks != nullptr ? static_cast<float>(a.sinks[head]) * kLog2e : -INFINITY;
}

// The query heads of a row of units
struct RowHeads {
  int kv_head, first, count;
  template <class Args>
  __device__ __forceinline__ RowHeads(const Args& a, int row)
      : kv_head(row / a.turns),
        first(kv_head * a.group + row % a.turns * kHeadsAtOnce),
        count(min(a.group - row % a.turns * kHeadsAtOnce, kHeadsAtOnce)) {}
};

__device__ __forceinline__ void store_pair(bf16* to, float x, float y) {
  *reinterpret_cast<uint32_t*>(to) = ptx::pack_bf16(x, y);
}
__device__ __forceinline__ void store_pair(float* to, float x, float y) {
  *reinterpret_cast<float2*>(to) = {x, y};
}

// Adds up what the warps have of a head: O / sum for two columns, and the LSE.
template <class Tile>
__device__ __forceinline__ float2 add_warps(WarpSums<Tile> sums, int head, int column, float& lse) {
  float most = -INFINITY;
#pragma unroll
  for (int w = 0; w < Tile::kWarps; ++w) most = fmaxf(most, sums.offset(w, head));
  float2 o = {0, 0};
  float sum = 0;
#pragma unroll
  for (int w = 0; w < Tile::kWarps; ++w) {
    const float factor = ptx::exp2(sums.offset(w, head) - finite(most));
    const float2 own = *reinterpret_cast<const float2*>(sums.out(w, head) + column);
    o.x = fmaf(factor, own.x, o.x);
    o.y = fmaf(factor, own.y, o.y);
    sum = fmaf(factor, sums.sum(w, head), sum);
  }
  lse = most + log2f(sum);  // no key, or scores of -inf alone: -inf
  const float inverse = sum == 0 ? 0 : 1 / sum;
  return {o.x * inverse, o.y * inverse};
}

// The sums of the CTA's warps: the row's result, or a part of it. `memory` had their rings.
template <class Tile, class Args, class Heads>
__device__ __forceinline__ void finish_row(const Args& a, int sequence, const RowHeads& row, Heads& heads,
                                           float* part_out, float* part_lse, uint8_t* memory) {
  __syncthreads();  // every warp is done with its ring, where the sums come
  const WarpSums<Tile> sums{reinterpret_cast<float*>(memory)};
  heads.store(sums, row.count);
  __syncthreads();  // every warp reads all sums
  const int pairs = a.head_dim / 2;
  for (int i = threadIdx.x; i < row.count * pairs; i += Tile::kWarps * 32) {
    const int head = i / pairs, column = 2 * (i % pairs);
    float lse;
    float2 o = add_warps(sums, head, column, lse);
    if (part_out == nullptr) {
      if constexpr (Tile::kGeneral) {
        const float share = 1 / (1 + ptx::exp2(log2_sink(a, row.first + head) - finite(lse)));
        o.x *= share, o.y *= share;
      }
      store_pair(a.out.head_begin(sequence, row.first + head) + column, o.x, o.y);
    } else {
      store_pair(part_out + head * a.head_dim + column, o.x, o.y);
      if (column == 0) part_lse[head] = lse;
    }
  }
}

// What a warp has for each Tile: the heads' state, made when the first tiles are under way.
template <class Tile>
struct MmaKernel {
  using T = bf16;
  using Bias = KeyBias<2>;
  static __device__ __forceinline__ int first_head() { return static_cast<int>(threadIdx.x) % 4 * 2; }
  static constexpr int kScratchFloats = 0;
  static __device__ __forceinline__ MmaHeads<Tile> heads(const ArgsOf<Tile, T>& a, int sequence,
                                                         const RowHeads& row, float* /*scratch*/) {
    return {a.q.head_begin(sequence, row.first), a.q.head, row.count, a.head_dim, a.score};
  }
};
template <class Tile, int kHeads>
struct FmaKernel {
  using T = float;
  using Bias = KeyBias<kHeads>;
  static __device__ __forceinline__ int first_head() { return 0; }
  using Heads = FmaHeads<Tile, kHeads>;
  static constexpr int kScratchFloats = kHeads * Tile::kWidth + Tile::kWarps * Heads::kScratchFloats;
  static __device__ __forceinline__ Heads heads(const ArgsOf<Tile, T>& a, int sequence, const RowHeads& row,
                                                float* scratch) {
    const float* q = a.q.head_begin(sequence, row.first);
    for (int i = threadIdx.x; i < kHeads * Tile::kWidth; i += Tile::kWarps * 32) {
      const int head = i / Tile::kWidth, column = i % Tile::kWidth;
      scratch[i] = head < row.count && column < a.head_dim ? q[head * a.q.head + column] : 0;
    }
    __syncthreads();  // every warp reads all of it
    return {scratch, scratch + kHeads * Tile::kWidth + threadIdx.x / 32 * Heads::kScratchFloats, a.score};
  }
};

template <class Tile, class Kernel>
struct Memory {
  static constexpr int kRings = Tile::kWarps * Ring<Tile, typename Kernel::T>::kBytes;
  static constexpr int kBytes = kRings + Kernel::kScratchFloats * 4;
  static_assert(WarpSums<Tile>::kFloats * 4 <= kRings && kBytes <= kSharedEverywhere);
};

// The keys of `units` of a row: this CTA's result or part of it
template <class Tile, class Kernel, class Args>
__device__ __forceinline__ void attend(const Args& a, int sequence, int row_index, Span units, int keys,
                                       float* part_out, float* part_lse, uint8_t* memory) {
  using WarpRing = RingOf<Tile, typename Kernel::T>;
  const RowHeads row(a, row_index);
  const int warp = threadIdx.x / 32;
  const int end = min(units.end * kUnitKeys<Tile>, keys);
  const int first = units.begin * kUnitKeys<Tile> + warp * Tile::kKeys;
  WarpRing ring(static_cast<uint32_t>(__cvta_generic_to_shared(memory)) + warp * WarpRing::kBytes,
                a.k.one_head(sequence, row.kv_head), a.v.one_head(sequence, row.kv_head), a.head_dim, first,
                end);
  if constexpr (Tile::kListed) ring.rows = a.work.rows_of(sequence);
#pragma unroll
  for (int slot = 0; slot < Tile::kSlots - 1; ++slot) ring.start(slot);
  auto heads =
      Kernel::heads(a, sequence, row, reinterpret_cast<float*>(memory + Memory<Tile, Kernel>::kRings));
  [[maybe_unused]] typename Kernel::Bias bias;
  if constexpr (Tile::kGeneral)
    bias = {a.score_cap, a.alibi, row.first + Kernel::first_head(), a.work.starts[sequence], a.work.capacity};
  int slot = 0;
#pragma unroll 1
  for (int key = first; key < end; key += kUnitKeys<Tile>) {
    ptx::cp_async_wait<Tile::kSlots - 2>();
    // The tile has come for all lanes, and all are done with the one before, which is replaced.
    __syncwarp();
    ring.start(slot == 0 ? Tile::kSlots - 1 : slot - 1);
    if constexpr (Tile::kListed)
      heads.take(ring.k_tile(slot), ring.v_tile(slot), end - key, bias.from(ring.rows[key]));
    else if constexpr (Tile::kGeneral)
      heads.take(ring.k_tile(slot), ring.v_tile(slot), end - key, bias.from(key));
    else
      heads.take(ring.k_tile(slot), ring.v_tile(slot), end - key);
    slot = slot + 1 == Tile::kSlots ? 0 : slot + 1;
  }
  finish_row<Tile>(a, sequence, row, heads, part_out, part_lse, memory);
}

// Calls attend_row(sequence, row, units of the row, keys, part_out, part_lse) for each row of which this CTA
// has units; part_out is null where it has all of them.
template <class Args, class AttendRow>
__device__ __forceinline__ void each_row_of_cta(const Args& a, const AttendRow& attend_row) {
  const auto& work = a.work;
  const int units = work.units_before(work.batch), share = work.share_of(units);
  const int cta = static_cast<int>(blockIdx.x), end = min((cta + 1) * share, units);
  int unit = cta * share;
  if (unit >= end) return;
  auto [sequence, first] = work.place_of(unit);
  int keys = work.keys_of(sequence), of_row = work.units_of(keys);
  int row = (unit - first) / of_row;
  for (;;) {
    const int row_begin = first + row * of_row;
    const Sharers sharers(Span{row_begin, row_begin + of_row}, share);
    const int64_t part = sharers.part_of(cta);
    const bool whole = sharers.one();
    attend_row(sequence, row, Span{unit - row_begin, min(end - row_begin, of_row)}, keys,
               whole ? nullptr : a.part_out + part * a.part_heads * a.head_dim,
               a.part_lse + part * a.part_heads);
    unit = row_begin + of_row;
    if (unit >= end) return;
    if (++row == work.rows) {
      row = 0;
      first = unit;
      do {
        keys = work.keys_of(++sequence);
        of_row = work.units_of(keys);
      } while (of_row == 0);
    }
    __syncthreads();  // every thread has read the sums, where the next tiles come
  }
}

template <class Tile, class Kernel>
__global__ void __launch_bounds__(Tile::kWarps * 32) decode_kernel(const ArgsOf<Tile, typename Kernel::T> a) {
  extern __shared__ __align__(128) uint8_t memory[];
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();  // after the wait: merge_kernel() reads `starts` at once
  each_row_of_cta(a, [&](int sequence, int row, Span units, int keys, float* part_out, float* part_lse) {
    attend<Tile, Kernel>(a, sequence, row, units, keys, part_out, part_lse, memory);
  });
}

inline constexpr int kMergeWarps = 8;

// A CTA a query head and sequence: each warp adds up every kMergeWarps-th part, kAtOnce of them at a time.
template <class T, int kPairs, bool kGeneral, class WorkType = Work>  // kPairs: pairs of columns of a lane
__global__ void __launch_bounds__(kMergeWarps * 32) merge_kernel(const Args<T, WorkType> a) {
  constexpr int kAtOnce = kPairs <= 2 ? 8 : 4;
  __shared__ float2 outs[kMergeWarps][kPairs * 32];
  __shared__ float offsets[kMergeWarps], sums[kMergeWarps];
  const int head = blockIdx.x, sequence = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto& work = a.work;
  const int keys = work.keys_of(sequence), of_row = work.units_of(keys);
  T* out = a.out.head_begin(sequence, head);
  const int share = work.share_of(work.units_before(work.batch));
  const int in_group = head % a.group, row = head / a.group * a.turns + in_group / kHeadsAtOnce;
  const int row_begin = work.units_before(sequence) + row * of_row;
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  if (keys == 0) {  // idle
    for (int i = threadIdx.x; i < a.head_dim / 2; i += kMergeWarps * 32) store_pair(out + 2 * i, 0, 0);
    return;
  }
  const Sharers sharers(Span{row_begin, row_begin + of_row}, share);
  if (sharers.one()) return;  // the CTA that has all keys has written y

  float2 o[kPairs] = {};
  float offset = -INFINITY, sum = 0;
  for (int first = sharers.first + warp; first <= sharers.last; first += kAtOnce * kMergeWarps) {
    float lse[kAtOnce];
    float2 part[kAtOnce][kPairs];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int cta = first + i * kMergeWarps;
      const int64_t at = int64_t{sharers.part_of(cta)} * a.part_heads + in_group % kHeadsAtOnce;
      const bool there = cta <= sharers.last;
      lse[i] = there ? a.part_lse[at] : -INFINITY;
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        const int column = 2 * (lane + 32 * j);
        part[i][j] = there && column < a.head_dim
                         ? *reinterpret_cast<const float2*>(a.part_out + at * a.head_dim + column)
                         : float2{0, 0};
      }
    }
    float raised = offset;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) raised = fmaxf(raised, lse[i]);
    const float old = ptx::exp2(offset - finite(raised));
    offset = raised;
    sum *= old;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) o[j].x *= old, o[j].y *= old;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float factor = ptx::exp2(lse[i] - finite(offset));
      sum += factor;
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        o[j].x = fmaf(factor, part[i][j].x, o[j].x);
        o[j].y = fmaf(factor, part[i][j].y, o[j].y);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kPairs; ++j) outs[warp][lane + 32 * j] = o[j];
  if (lane == 0) offsets[warp] = offset, sums[warp] = sum;
  __syncthreads();  // the sums of all warps are there
  const int pair = threadIdx.x;
  if (pair >= a.head_dim / 2) return;
  float most = -INFINITY;
#pragma unroll
  for (int w = 0; w < kMergeWarps; ++w) most = fmaxf(most, offsets[w]);
  float2 all = {0, 0};
  float total = 0;
#pragma unroll
  for (int w = 0; w < kMergeWarps; ++w) {
    const float factor = ptx::exp2(offsets[w] - finite(most));
    total = fmaf(factor, sums[w], total);
    all.x = fmaf(factor, outs[w][pair].x, all.x);
    all.y = fmaf(factor, outs[w][pair].y, all.y);
  }
  if constexpr (kGeneral) total += ptx::exp2(log2_sink(a, head) - finite(most));
  const float inverse = total == 0 ? 0 : 1 / total;
  store_pair(out + 2 * pair, all.x * inverse, all.y * inverse);
}

}  // namespace tessera::attention::decode
