// Decoding with a mixture of blocks.
//
//   complete_kernel  a CTA for each block, key/value head and sequence: the mean of a block whose last token
//                    is new
//   choose_kernel    a CTA for each query head and sequence. A thread computes the product of a block, summed
//                    as in choose.cu. Then the largest are taken one by one, the earlier of equal ones first
//   attend_kernel    a CTA takes up to kDecodeTile keys of a block: first each thread takes a key, then 16
//                    bytes of values
//   merge_kernel     a CTA for each query head and sequence merges the results of its tiles, in their order
#include <cmath>
#include <cstdint>

#include "kernels/attention/common/launch.cuh"
#include "kernels/attention/common/view.h"
#include "kernels/attention/mixture.h"
#include "kernels/attention/mixture/decode_workspace.h"
#include "kernels/attention/mixture/values.cuh"

namespace tessera::attention::mixture {
namespace {

constexpr int kThreads = kMeanThreads, kWarps = kThreads / 32, kMostHeadDim = 256;
constexpr unsigned kWholeWarp = ~0u;

template <class T>
__global__ void __launch_bounds__(kThreads)
    complete_kernel(View<const T> k, const int32_t* starts, int tokens, int head_dim, int size, int slots,
                    float* means) {
  const int head = blockIdx.y, b = blockIdx.z, start = starts[b];
  if (start < 0) return;
  const int slot = start / size + static_cast<int>(blockIdx.x);
  if ((slot + 1) * int64_t{size} > int64_t{start} + tokens) return;  // it is not whole yet
  write_mean(k.head_begin(b, head) + int64_t{slot} * size * k.row, k.row, size, head_dim,
             means + ((int64_t{b} * gridDim.y + head) * slots + slot) * head_dim);
}

struct Shape {
  int heads, group, head_dim, size, count, slots, tiles;
  float scale, cap;
};

// The slot with the largest score so far, the earlier of equal ones
struct Best {
  float score = -INFINITY;
  int slot = INT32_MAX;

  __device__ __forceinline__ void take(float other_score, int other_slot) {
    if (other_slot == INT32_MAX) return;
    if (slot == INT32_MAX || other_score > score || (other_score == score && other_slot < slot))
      score = other_score, slot = other_slot;
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads, 4)
    choose_kernel(View<const T> q, const int32_t* starts, const float* means, Shape s, float* all_scores,
                  int32_t* all_chosen) {
  __shared__ float query[kMostHeadDim];
  __shared__ Best best[kWarps];
  const int head = blockIdx.x, b = blockIdx.y, start = starts[b], me = static_cast<int>(threadIdx.x);
  const int64_t row = int64_t{b} * s.heads + head;
  int32_t* chosen = all_chosen + row * s.count;
  if (me < s.count) chosen[me] = -1;
  if (start < 0) return;
  for (int d = me; d < s.head_dim; d += kThreads) query[d] = static_cast<float>(q.head_begin(b, head)[d]);
  __syncthreads();
  const int whole = start / s.size, others = min(s.count - 1, whole);
  if (me == 0) chosen[s.count - 1] = whole * s.size;
  float* scores = all_scores + row * s.slots;  // NaN: chosen already
  const float* of_head = means + (int64_t{b} * (s.heads / s.group) + head / s.group) * s.slots * s.head_dim;
  for (int slot = me; slot < whole; slot += kThreads) {
    float sum = 0;
    for (int d = 0; d < s.head_dim; d += 4) {
      float mean[4];
      load_values(of_head + int64_t{slot} * s.head_dim + d, mean);
#pragma unroll
      for (int i = 0; i < 4; ++i) sum = fmaf(query[d + i], mean[i], sum);
    }
    scores[slot] = sum > -INFINITY ? sum : -INFINITY;  // NaN counts as -inf
  }
  for (int place = 0; place < others; ++place) {
    Best mine;
    for (int slot = me; slot < whole; slot += kThreads)
      if (const float score = scores[slot]; score == score) mine.take(score, slot);
    for (int step = 16; step > 0; step /= 2) {
      const float score = __shfl_xor_sync(kWholeWarp, mine.score, step);
      const int slot = __shfl_xor_sync(kWholeWarp, mine.slot, step);
      mine.take(score, slot);
    }
    if (me % 32 == 0) best[me / 32] = mine;
    __syncthreads();
    for (int warp = 0; warp < kWarps; ++warp) mine.take(best[warp].score, best[warp].slot);
    if (mine.slot % kThreads == me) scores[mine.slot] = NAN;
    if (me == 0) chosen[place] = mine.slot * s.size;
    __syncthreads();  // `best` has been read
  }
}

// Gives every thread of the CTA the largest x, or the sum of all x in a fixed order.
template <bool kSum>
__device__ __forceinline__ float of_cta(float x, float (&warps)[kWarps]) {
  for (int step = 16; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(kWholeWarp, x, step);
    x = kSum ? x + other : fmaxf(x, other);
  }
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
  __syncthreads();
  x = warps[0];
  for (int warp = 1; warp < kWarps; ++warp) x = kSum ? x + warps[warp] : fmaxf(x, warps[warp]);
  __syncthreads();
  return x;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    attend_kernel(View<const T> q, View<const T> k, View<const T> v, const int32_t* starts, Shape s,
                  const int32_t* all_chosen, float* all_most, float* all_sums, float* all_values) {
  constexpr int kWidth = kValues<T>;
  __shared__ float query[kMostHeadDim], p[kDecodeTile], warps[kWarps];
  __shared__ float parts[kThreads][kWidth];
  const int tile = blockIdx.x, head = blockIdx.y, b = blockIdx.z, start = starts[b],
            me = static_cast<int>(threadIdx.x);
  const int64_t row = int64_t{b} * s.heads + head, part = row * s.tiles + tile;
  const int of_block = s.tiles / s.count, block = all_chosen[row * s.count + tile / of_block];
  const int first = block + tile % of_block * kDecodeTile,
            keys = block < 0 ? 0 : max(0, min(min(kDecodeTile, block + s.size - first), start + 1 - first));
  if (keys == 0) {
    if (me == 0) all_most[part] = -INFINITY, all_sums[part] = 0;
    return;
  }
  for (int d = me; d < s.head_dim; d += kThreads) query[d] = static_cast<float>(q.head_begin(b, head)[d]);
  __syncthreads();
  const int kv_head = head / s.group;
  float most = -INFINITY;
  for (int key = me; key < keys; key += kThreads) {
    const T* of_key = k.head_begin(b, kv_head) + (int64_t{first} + key) * k.row;
    float dot = 0;
    for (int d = 0; d < s.head_dim; d += kWidth) {
      float values[kWidth];
      load_values(of_key + d, values);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) dot = fmaf(query[d + i], values[i], dot);
    }
    float score = s.scale * dot;
    if (s.cap > 0) score = s.cap * tanhf(score / s.cap);
    p[key] = score;
    most = fmaxf(most, score);
  }
  most = of_cta<false>(most, warps);
  float sum = 0;
  for (int key = me; key < keys; key += kThreads) {
    p[key] = most == -INFINITY ? 0 : expf(p[key] - most);
    sum += p[key];
  }
  sum = of_cta<true>(sum, warps);  // its barriers also complete p
  const int lanes = s.head_dim / kWidth, groups = kThreads / lanes, group = me / lanes, lane = me % lanes;
  float out[kWidth] = {};
  if (group < groups) {
    for (int key = group; key < keys; key += groups) {
      float values[kWidth];
      load_values(v.head_begin(b, kv_head) + (int64_t{first} + key) * v.row + lane * kWidth, values);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) out[i] = fmaf(p[key], values[i], out[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) parts[me][i] = out[i];
  __syncthreads();
  if (me == 0) all_most[part] = most, all_sums[part] = sum;
  if (me >= lanes) return;
  for (int other = 1; other < groups; ++other) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) out[i] += parts[other * lanes + me][i];
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) all_values[part * s.head_dim + me * kWidth + i] = out[i];
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    merge_kernel(View<T> out, const T* sinks, Shape s, const float* all_most, const float* all_sums,
                 const float* all_values) {
  const int head = blockIdx.x, b = blockIdx.y, d = static_cast<int>(threadIdx.x);
  if (d >= s.head_dim) return;
  const int64_t first = (int64_t{b} * s.heads + head) * s.tiles;
  const float sink = sinks != nullptr ? static_cast<float>(sinks[head]) : -INFINITY;
  float most = sink;
  for (int tile = 0; tile < s.tiles; ++tile) most = fmaxf(most, all_most[first + tile]);
  float sum = sink == -INFINITY ? 0 : expf(sink - most), value = 0;
  for (int tile = 0; tile < s.tiles; ++tile) {
    if (all_sums[first + tile] == 0) continue;  // it had no keys, or none with a probability
    const float weight = expf(all_most[first + tile] - most);
    sum = fmaf(weight, all_sums[first + tile], sum);
    value = fmaf(weight, all_values[(first + tile) * s.head_dim + d], value);
  }
  out.head_begin(b, head)[d] = T(sum == 0 ? 0.0f : value / sum);
}

template <class T>
AttnStatus complete(const CompleteMeans& a, CUstream_st* stream) {
  const auto slots = static_cast<int>((a.capacity + a.size - 1) / a.size);
  const dim3 grid(static_cast<unsigned>(a.tokens / a.size + 1), static_cast<unsigned>(a.kv_heads),
                  static_cast<unsigned>(a.batch));
  return launch(complete_kernel<T>, grid, kThreads, 0, stream, view<const T>(a.k), a.starts,
                static_cast<int>(a.tokens), a.head_dim, a.size, slots, a.means);
}

template <class T>
AttnStatus decode_in(const MixtureDecode& a, CUstream_st* stream) {
  const AttnDecodeProblem& p = a.call.problem;
  const DecodeWorkspace w(a.call.workspace, p, a.choice);
  if (a.call.workspace == nullptr || a.call.workspace_bytes < w.bytes) return ATTN_NO_WORKSPACE;
  const Shape s{.heads = static_cast<int>(p.heads),
                .group = static_cast<int>(p.heads / p.kv_heads),
                .head_dim = p.head_dim,
                .size = a.choice.size,
                .count = a.choice.count,
                .slots = w.slots,
                .tiles = w.tiles,
                .scale = p.scale,
                .cap = p.score_cap};
  const auto heads = static_cast<unsigned>(p.heads), batch = static_cast<unsigned>(p.batch);
  const View<const T> q = view<const T>(a.call.q);
  AttnStatus status = launch(choose_kernel<T>, dim3(heads, batch), kThreads, 0, stream, q, a.call.starts,
                             a.means, s, w.scores, w.chosen);
  if (status == ATTN_OK)
    status = launch(attend_kernel<T>, dim3(static_cast<unsigned>(w.tiles), heads, batch), kThreads, 0, stream,
                    q, view<const T>(a.call.k), view<const T>(a.call.v), a.call.starts, s,
                    static_cast<const int32_t*>(w.chosen), w.most, w.sums, w.values);
  if (status == ATTN_OK)
    status = launch(merge_kernel<T>, dim3(heads, batch), kThreads, 0, stream, view<T>(a.call.out),
                    static_cast<const T*>(a.call.sinks), s, static_cast<const float*>(w.most),
                    static_cast<const float*>(w.sums), static_cast<const float*>(w.values));
  return status;
}

}  // namespace

AttnStatus complete_means(const CompleteMeans& a, CUstream_st* stream) {
  return a.dtype == ATTN_BF16 ? complete<__nv_bfloat16>(a, stream) : complete<float>(a, stream);
}

AttnStatus decode(const MixtureDecode& a, CUstream_st* stream) {
  return a.call.problem.dtype == ATTN_BF16 ? decode_in<__nv_bfloat16>(a, stream)
                                           : decode_in<float>(a, stream);
}

}  // namespace tessera::attention::mixture
