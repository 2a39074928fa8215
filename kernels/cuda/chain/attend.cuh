// An attention stage: the new token's query heads, its key and its value are normed, rotated and appended to
// the cache, and attention over it is shared out among blocks as in kernels/attention/decode/kernel.cuh.
//
//   each block, for some units of a head of keys and values:       q: [heads of the group, D], k, v: [D]
//     words -> norm -> rotation -> shared memory; the block with the last unit also appends k and v
//     each warp, for its 16 keys of a unit: MmaHeads; the new key and value become a row of their tile
//     the warps' sums become one -> y where one block has all keys of the head, else a part
//   each block, for some elements of y of the head: the sum of its parts
// So y of a head is there when all blocks of the head have stored their parts and read those of the others.
#pragma once

#include "kernels/cuda/chain/linear.cuh"

namespace tessera::cuda::chain {

template <int kWidth>
struct AttendMemory {
  attention::decode::WarpSums<AttendTile<kWidth>> sums;  // floats
  bf16 *q, *k, *v;                                       // [kMostGroup, kWidth], [kWidth], [kWidth]

  static constexpr int kBytes =
      attention::decode::WarpSums<AttendTile<kWidth>>::kFloats * 4 + (kMostGroup + 2) * kWidth * 2;
  __device__ __forceinline__ explicit AttendMemory(uint8_t* region)
      : sums{reinterpret_cast<float*>(region)},
        q(reinterpret_cast<bf16*>(region) + attention::decode::WarpSums<AttendTile<kWidth>>::kFloats * 2),
        k(q + kMostGroup * kWidth),
        v(k + kWidth) {}
};

// One head of the new token, by a warp: from words to shared memory, and to the cache if there is one
__device__ __forceinline__ void place_head(const Block& b, const uint32_t* from, uint32_t stamp,
                                           const bf16* norm, float epsilon, bool rotates, bf16* to,
                                           bf16* cached) {
  constexpr int kPairs = 2;  // of a lane
  const int lane = threadIdx.x % kWarp, pairs = b.a.head_dim / 2;
  const auto exists = [&](int i) { return lane + i * kWarp < pairs; };
  float low[kPairs] = {}, high[kPairs] = {}, low_weight[kPairs], high_weight[kPairs];
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int at = lane + i * kWarp;
    if (!norm || !exists(i)) continue;
    low_weight[i] = static_cast<float>(norm[at]), high_weight[i] = static_cast<float>(norm[at + pairs]);
  }
  uint32_t low_word[kPairs], high_word[kPairs];
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const uint32_t* own = from + lane + i * kWarp;
    if (exists(i)) low_word[i] = ptx::load_relaxed(own), high_word[i] = ptx::load_relaxed(own + pairs);
  }
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const uint32_t* own = from + lane + i * kWarp;
    if (!exists(i)) continue;
    wait_for(low_word[i], own, stamp), wait_for(high_word[i], own + pairs, stamp);
    low[i] = value_of(low_word[i]), high[i] = value_of(high_word[i]);
  }
  if (norm) {
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) squares += low[i] * low[i] + high[i] * high[i];
    const float rstd = rsqrtf(warp_sum(squares) / static_cast<float>(b.a.head_dim) + epsilon);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) low[i] *= rstd * low_weight[i], high[i] *= rstd * high_weight[i];
  }
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int at = lane + i * kWarp;
    if (!exists(i)) continue;
    if (rotates) {
      const float2 angle = b.shared.angles[at];
      const float l = low[i];
      low[i] = l * angle.x - high[i] * angle.y;
      high[i] = high[i] * angle.x + l * angle.y;
    }
    const bf16 first = __float2bfloat16_rn(low[i]), second = __float2bfloat16_rn(high[i]);
    to[at] = first, to[at + pairs] = second;
    if (cached) cached[at] = first, cached[at + pairs] = second;
  }
}

// The heads of the group, and of the last part also k and v: a warp takes every kWarps-th
template <int kWidth>
__device__ __forceinline__ void place_heads(const Block& b, const Stage& s, const AttendTask& task,
                                            const AttendMemory<kWidth>& memory) {
  const int D = b.a.head_dim, group = b.a.group, K = b.a.kv_heads, H = K * group;
  const uint32_t stamp = b.stamp(s.x_from);
  const uint32_t* heads = b.a.words + s.x;
  const bool rotates = b.a.angles != nullptr;
  const int64_t row = (int64_t{b.start} * K + task.head) * D;
  for (int job = threadIdx.x / kWarp; job < group + (task.last() ? 2 : 0); job += kWarps) {
    if (job < group) {
      place_head(b, heads + (task.head * group + job) * D, stamp, static_cast<const bf16*>(s.norm_weight),
                 s.epsilon, rotates, memory.q + job * kWidth, nullptr);
    } else if (job == group) {
      place_head(b, heads + (H + task.head) * D, stamp, static_cast<const bf16*>(s.norm_bias), s.epsilon,
                 rotates, memory.k, static_cast<bf16*>(const_cast<void*>(s.weight)) + row);
    } else {
      place_head(b, heads + (H + K + task.head) * D, stamp, nullptr, 0, false, memory.v,
                 static_cast<bf16*>(const_cast<void*>(s.bias)) + row);
    }
  }
}

// y of a head from its parts, of which this block takes every parts-th run of elements
__device__ __forceinline__ void merge_parts(const Block& b, const Stage& s, int index,
                                            const AttendTask& task) {
  constexpr int kAtOnce = 8;
  const int D = b.a.head_dim, elements = b.a.group * D, run = (elements + task.parts - 1) / task.parts;
  const uint32_t stamp = b.long_stamp(index);
  const int end = min((task.part + 1) * run, elements);
  for (int i = task.part * run + static_cast<int>(threadIdx.x); i < end; i += kComputeThreads) {
    const int head = i / D;
    float offset = -INFINITY, sum = 0, o = 0;
    for (int first = 0; first < task.parts; first += kAtOnce) {
      uint2 lse[kAtOnce], part[kAtOnce];
      const auto lse_at = [&](int j) {
        const int64_t of_part = int64_t{task.head} * task.parts + first + j;
        return b.a.part_lse + (of_part * b.a.group + head) * 2;
      };
      const auto part_at = [&](int j) {
        const int64_t of_part = int64_t{task.head} * task.parts + first + j;
        return b.a.parts + (of_part * elements + i) * 2;
      };
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        lse[j] = {__float_as_uint(-INFINITY), stamp}, part[j] = {0, stamp};
        if (first + j < task.parts)
          lse[j] = ptx::load_relaxed_uint2(lse_at(j)), part[j] = ptx::load_relaxed_uint2(part_at(j));
      }
      float raised = offset;
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        for (Patience patience; lse[j].y != stamp; patience.spend())
          lse[j] = ptx::load_relaxed_uint2(lse_at(j));
        for (Patience patience; part[j].y != stamp; patience.spend())
          part[j] = ptx::load_relaxed_uint2(part_at(j));
        raised = fmaxf(raised, __uint_as_float(lse[j].x));
      }
      const float old = ptx::exp2(offset - attention::decode::finite(raised));
      offset = raised, sum *= old, o *= old;
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const float factor = ptx::exp2(__uint_as_float(lse[j].x) - attention::decode::finite(offset));
        sum += factor;
        o = fmaf(factor, __uint_as_float(part[j].x), o);
      }
    }
    ptx::store_relaxed(b.a.words + s.y + task.head * elements + i,
                       word_of(sum == 0 ? 0 : o / sum, b.stamp(index)));
  }
}

template <int kWidth>
__device__ __forceinline__ void attend(const Block& b, const Stage& s, int index, Reader& reader) {
  using Tile = AttendTile<kWidth>;
  using Rows = attention::decode::SharedRows<Tile>;
  const AttendTask task(b, s);
  if (!task.exists) return;
  const AttendMemory<kWidth> memory(b.region);
  const int D = b.a.head_dim, group = b.a.group, warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  place_heads<kWidth>(b, s, task, memory);
  compute_sync();  // every warp reads all of q
  attention::decode::MmaHeads<Tile> heads(memory.q, kWidth, group, D, s.scale);
  for (int unit = task.first; unit < task.end; ++unit) {
    const uint32_t tiles = reader.wait(b);
    const Rows keys{tiles + warp * 2 * Rows::kBytes}, values{keys.base + Rows::kBytes};
    const int first = (unit * kWarps + warp) * Tile::kKeys, row = b.start - first;
    if (row >= 0) {
      if (row < Tile::kKeys) {  // the new key's tile
        if (lane < D / 8) {
          ptx::store_shared(keys.chunk(row, lane), reinterpret_cast<const uint4*>(memory.k)[lane]);
          ptx::store_shared(values.chunk(row, lane), reinterpret_cast<const uint4*>(memory.v)[lane]);
        }
        __syncwarp();  // every lane reads the row
      }
      heads.take(keys, values, row + 1);
    }
    ptx::fence_shared_for_async();  // the copy engine may write next where this warp wrote
    reader.give_back(b);
  }
  heads.store(memory.sums, group);
  compute_sync();  // every thread reads the sums of all warps
  const uint32_t stamp = b.stamp(index), of_part = b.long_stamp(index);
  const int pairs = D / 2;
  const int64_t part = int64_t{task.head} * task.parts + task.part;
  for (int i = threadIdx.x; i < group * pairs; i += kComputeThreads) {
    const int head = i / pairs, column = 2 * (i - head * pairs);
    float lse;
    const float2 o = attention::decode::add_warps(memory.sums, head, column, lse);
    if (task.parts == 1) {
      ptx::store_relaxed(b.a.words + s.y + (task.head * group + head) * D + column,
                         uint2{word_of(o.x, stamp), word_of(o.y, stamp)});
      continue;
    }
    ptx::store_relaxed(b.a.parts + ((part * group + head) * D + column) * 2,
                       uint4{__float_as_uint(o.x), of_part, __float_as_uint(o.y), of_part});
    if (column == 0)
      ptx::store_relaxed(b.a.part_lse + (part * group + head) * 2, uint2{__float_as_uint(lse), of_part});
  }
  if (task.parts > 1) merge_parts(b, s, index, task);
  compute_sync();  // the next stage writes where the sums were
}

}  // namespace tessera::cuda::chain
