// An attention instruction: the new token's query heads, its key and its value are normed, rotated and
// appended to the cache, and attention over it is shared out among blocks as in
// kernels/attention/decode/kernel.cuh.
//
//   each block, for some units of a head of keys and values:       q: [heads of the group, D], k, v: [D]
//     flagged values -> norm -> rotation -> shared memory; the block with their unit also appends k and v
//     each warp, for its 16 keys of a unit: MmaHeads; the new key and value become a row of their tile
//     the warps' sums become one -> y where one block has all keys of the head, else a part
//   each block, for some elements of y of the head: the sum of its parts
// So y of a head is there when all blocks of the head have stored their parts and read those of the others.
#pragma once

#include "kernels/cuda/decode_step/linear.cuh"

namespace tessera::cuda::decode_step {

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

// One head of the new token, by a warp: from flagged values to shared memory, and to `cached` if it is given
__device__ __forceinline__ void place_head(const Block& b, const uint32_t* from, uint32_t flag,
                                           const bf16* norm, float epsilon, const float2* angles, bf16* to,
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
  uint32_t low_packed[kPairs], high_packed[kPairs];
  const auto load = [&] {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const uint32_t* own = from + lane + i * kWarp;
      if (exists(i)) low_packed[i] = ptx::load_relaxed(own), high_packed[i] = ptx::load_relaxed(own + pairs);
    }
  };
#pragma unroll
  for (int i = 0; i < kPairs; ++i) low_packed[i] = high_packed[i] = flag;
  load();
  spin_until(
      [&] {
        bool ready = true;
#pragma unroll
        for (int i = 0; i < kPairs; ++i)
          ready = ready && has_flag(low_packed[i], flag) && has_flag(high_packed[i], flag);
        return ready;
      },
      load);
#pragma unroll
  for (int i = 0; i < kPairs; ++i) low[i] = value_of(low_packed[i]), high[i] = value_of(high_packed[i]);
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
    if (angles) {
      const float2 angle = angles[at];
      const float l = low[i];
      low[i] = l * angle.x - high[i] * angle.y;
      high[i] = high[i] * angle.x + l * angle.y;
    }
    const bf16 first = __float2bfloat16_rn(low[i]), second = __float2bfloat16_rn(high[i]);
    to[at] = first, to[at + pairs] = second;
    if (cached) cached[at] = first, cached[at + pairs] = second;
  }
}

// The heads of the group, and where their row is also k and v: a warp takes every kWarps-th
template <int kWidth>
__device__ __forceinline__ void place_heads(const Block& b, const Instruction& s, const AttendTask& task,
                                            const AttendMemory<kWidth>& memory) {
  const int D = b.a.head_dim, group = b.a.group, K = b.a.kv_heads, H = K * group;
  const uint32_t flag = b.flag(s.x_from);
  const uint32_t* heads = b.values + s.x;
  const float2* angles = b.a.angles[0] ? b.shared.angles[s.angles] : nullptr;
  const int64_t row = (int64_t{task.newest} * K + task.head) * D;
  for (int job = threadIdx.x / kWarp; job < group + (task.has_newest() ? 2 : 0); job += kWarps) {
    if (job < group) {
      place_head(b, heads + (task.head * group + job) * D, flag, static_cast<const bf16*>(s.norm_weight),
                 s.epsilon, angles, memory.q + job * kWidth, nullptr);
    } else if (job == group) {
      place_head(b, heads + (H + task.head) * D, flag, static_cast<const bf16*>(s.norm_bias), s.epsilon,
                 angles, memory.k, static_cast<bf16*>(const_cast<void*>(s.weight)) + row);
    } else {
      place_head(b, heads + (H + K + task.head) * D, flag, nullptr, 0, nullptr, memory.v,
                 static_cast<bf16*>(const_cast<void*>(s.bias)) + row);
    }
  }
}

// y of a head from its parts, of which this block takes every parts-th run of elements. Neighbouring lanes
// have the parts of an element.
__device__ __forceinline__ void merge_parts(const Block& b, const Instruction& s, int index,
                                            const AttendTask& task) {
  const int D = b.a.head_dim, elements = b.a.group * D, run = (elements + task.parts - 1) / task.parts;
  const int lanes = min(kWarp, 1 << (kWarp - __clz(task.parts - 1)));  // of an element
  const int begin = task.part * run, end = min(begin + run, elements);
  const uint32_t flag = b.long_flag(index);
  const int first_part = static_cast<int>(threadIdx.x) & (lanes - 1);
  for (int first = begin; first < end; first += kComputeThreads / lanes) {
    const int i = first + static_cast<int>(threadIdx.x) / lanes, head = i / D;
    float offset = -INFINITY, sum = 0, o = 0;
    for (int step = 0; step < task.parts; step += lanes) {
      const int part = step + first_part, of_head = task.head * task.parts + part;
      const bool exists = i < end && part < task.parts;
      const uint32_t *lse_at = b.a.part_lse + (of_head * b.a.group + head) * 2,
                     *o_at = b.a.parts + (int64_t{of_head} * elements + i) * 2;
      uint2 lse = {__float_as_uint(-INFINITY), flag}, own = {0, flag};
      const auto load = [&] {
        if (exists) lse = ptx::load_relaxed_uint2(lse_at), own = ptx::load_relaxed_uint2(o_at);
      };
      load();
      spin_until([&] { return lse.y == flag && own.y == flag; }, load);
      const float raised = fmaxf(offset, __uint_as_float(lse.x)), zero = attention::finite(raised),
                  old = ptx::exp2(offset - zero), factor = ptx::exp2(__uint_as_float(lse.x) - zero);
      offset = raised;
      sum = sum * old + factor, o = o * old + factor * __uint_as_float(own.x);
    }
    float most = offset;
    for (int distance = lanes / 2; distance > 0; distance /= 2)
      most = fmaxf(most, __shfl_xor_sync(kWholeWarp, most, distance));
    const float factor = ptx::exp2(offset - attention::finite(most));
    sum *= factor, o *= factor;
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
      sum += __shfl_xor_sync(kWholeWarp, sum, distance);
      o += __shfl_xor_sync(kWholeWarp, o, distance);
    }
    if (first_part == 0 && i < end)
      ptx::store_relaxed(b.values + s.y + task.head * elements + i,
                         flagged(sum == 0 ? 0 : o / sum, b.flag(index)));
  }
}

template <int kWidth>
__device__ __forceinline__ void attend(const Block& b, const Instruction& s, int index, Reader& reader) {
  using Tile = AttendTile<kWidth>;
  using Rows = CachedRows<kWidth>;
  const AttendTask task(b, s);
  if (!task.exists) return;
  const AttendMemory<kWidth> memory(b.region);
  const int D = b.a.head_dim, group = b.a.group, warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  place_heads<kWidth>(b, s, task, memory);
  compute_sync();  // every warp reads all of q
  attention::decode::MmaHeads<Tile> heads(memory.q, kWidth, group, D, {.scale = s.scale});
  for (int unit = task.first; unit < task.end; ++unit) {
    const uint32_t tiles = reader.wait(b);
    const Rows keys{tiles + warp * 2 * Rows::kBytes}, values{keys.base + Rows::kBytes};
    const int first = (unit * kWarps + warp) * Tile::kKeys, seen = task.keys - first,
              newest = task.newest - first;
    if (seen > 0) {
      const bool has_newest = newest >= 0 && newest < Tile::kKeys;
      if (has_newest || seen < Tile::kKeys) {
        if (has_newest && lane < D / 8) {
          ptx::store_shared(keys.chunk(newest, lane), reinterpret_cast<const uint4*>(memory.k)[lane]);
          ptx::store_shared(values.chunk(newest, lane), reinterpret_cast<const uint4*>(memory.v)[lane]);
        }
        // The rest of the tile holds whatever the cache does. take() skips those keys, but multiplies the
        // values by 0.
        for (int i = lane; i < (Tile::kKeys - seen) * Rows::kChunks; i += kWarp)
          ptx::store_shared(values.chunk(seen + i / Rows::kChunks, i % Rows::kChunks), uint4{});
        ptx::fence_shared_for_async();  // TMA may write next where this warp wrote
        __syncwarp();                   // every lane reads the rows
      }
      heads.take(keys, values, seen);
    }
    reader.give_back(b);
  }
  heads.store(memory.sums, group);
  compute_sync();  // every thread reads the sums of all warps
  const uint32_t flag = b.flag(index), of_part = b.long_flag(index);
  const int pairs = D / 2;
  const int64_t part = int64_t{task.head} * task.parts + task.part;
  constexpr int kWarpsOfHead = kMostHeadDim / 2 / kWarp;
  for (int job = warp; job < group * kWarpsOfHead; job += kWarps) {
    const int head = job / kWarpsOfHead, pair = job % kWarpsOfHead * kWarp + lane, column = 2 * pair;
    if (pair >= pairs) continue;
    float lse;
    const float2 o = attention::decode::add_warps(memory.sums, head, column, lse);
    if (task.parts == 1) {
      ptx::store_relaxed(b.values + s.y + (task.head * group + head) * D + column,
                         uint2{flagged(o.x, flag), flagged(o.y, flag)});
      continue;
    }
    ptx::store_relaxed(b.a.parts + ((part * group + head) * D + column) * 2,
                       uint4{__float_as_uint(o.x), of_part, __float_as_uint(o.y), of_part});
    if (column == 0)
      ptx::store_relaxed(b.a.part_lse + (part * group + head) * 2, uint2{__float_as_uint(lse), of_part});
  }
  if (task.parts > 1) merge_parts(b, s, index, task);
  compute_sync();  // the next instruction writes where the sums were
}

}  // namespace tessera::cuda::decode_step
