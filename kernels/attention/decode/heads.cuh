// What a warp knows of up to eight query heads after the keys that it has seen, and how it takes a tile:
//
//   S = K Q^T [keys, heads],  P = 2^(c S - m),  sum += P,  O^T += V^T P^T [D, heads],  c = scale log2(e)
//
// As in common/softmax.cuh, m lags behind the largest c s by up to kSlack: a warp votes whether to raise it.
#pragma once

#include <cuda_bf16.h>

#include "kernels/attention/common/softmax.cuh"
#include "kernels/attention/decode/ring.cuh"
#include "kernels/attention/decode/work.cuh"

namespace tessera::attention::decode {

using bf16 = __nv_bfloat16;

struct NoBias {
  static constexpr bool kAny = false;
};
// A cap, and ALiBi of the heads that a lane has scores of, for one query
template <int kHeads>
struct KeyBias {
  static constexpr bool kAny = true;
  float slopes[kHeads];  // in units of log2, as the next
  float cap;             // 0: none
  int last, capacity;    // the query's token; rows of the cache
  int first;             // row of a tile

  KeyBias() = default;
  __device__ __forceinline__ KeyBias(float score_cap, Alibi alibi, int first_head, int last_token, int rows)
      : cap(score_cap * kLog2e), last(last_token), capacity(rows), first(0) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) slopes[h] = alibi ? alibi.slope(first_head + h) * kLog2e : 0;
  }
  __device__ __forceinline__ KeyBias from(int row) const {
    KeyBias bias = *this;
    bias.first = row;
    return bias;
  }
  // The score s, of which all but a cap and a bias is known
  __device__ __forceinline__ float score(float s, int head, int row) const {
    if (cap > 0) s = cap * tanhf(s / cap);
    return s + alibi_bias(slopes[head], last, token_of_row(first + row, last, capacity));
  }
};

// What the warps of a CTA add up at the end, in shared memory: unnormalised O, m and sum of each warp
template <class Tile>
struct WarpSums {
  static constexpr int kPitch = Tile::kWidth + 4;  // heads lie in different banks
  static constexpr int kFloats = Tile::kWarps * kHeadsAtOnce * (kPitch + 2);
  float* memory;

  __device__ __forceinline__ float* out(int warp, int head) const {
    return memory + (warp * kHeadsAtOnce + head) * kPitch;
  }
  __device__ __forceinline__ float& offset(int warp, int head) const {
    return memory[Tile::kWarps * kHeadsAtOnce * kPitch + warp * kHeadsAtOnce + head];
  }
  __device__ __forceinline__ float& sum(int warp, int head) const {
    return (&offset(warp, head))[Tile::kWarps * kHeadsAtOnce];
  }
};

// On tensor cores: 16 keys are the M of an mma and the heads its N. P goes into its product in two parts,
// what bf16 holds of it and what bf16 holds of the rest, so that it keeps 16 bits. A lane holds the columns
// 2 (lane % 4), +1 of S and of O^T, of the rows lane / 4 + 8 r.
template <class Tile>
struct MmaHeads {
  static constexpr int kSteps = Tile::kWidth / 16;
  static_assert(Tile::kKeys == 16 && Tile::kElement == 2);

  uint32_t q[kSteps][2];    // Q^T as operands B
  float o[kSteps][4] = {};  // O^T, 16 columns of the head each
  float offset[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
  typename Tile::Score score;

  // `count` heads, those behind it zeros; `from` is the first head, `stride` leads to the next.
  __device__ __forceinline__ MmaHeads(const bf16* from, int64_t stride, int count, int head_dim,
                                      ScoreArgs of_scores)
      : score(of_scores) {
    const int lane = threadIdx.x % 32, head = lane / 4;
#pragma unroll
    for (int i = 0; i < 2 * kSteps; ++i) {
      const int column = 8 * i + lane % 4 * 2;
      q[i / 2][i % 2] = head < count && column < head_dim
                            ? *reinterpret_cast<const uint32_t*>(from + head * stride + column)
                            : 0;
    }
  }

  // The first `keys` keys of a tile. Rows: where its chunks lie, as in SharedRows
  template <class Rows, class Bias = NoBias>  // a bias of columns 2 (lane % 4), +1
  __device__ __forceinline__ void take(Rows k, Rows v, int keys, const Bias& bias = {}) {
    float s[4];
    scores(k, s);
    const int lane = threadIdx.x % 32;
    if constexpr (Bias::kAny) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[i] = bias.score(s[i], i % 2, lane / 4 + 8 * (i / 2));
    }
    if (keys < Tile::kKeys) {
#pragma unroll
      for (int r = 0; r < 2; ++r)
        if (lane / 4 + 8 * r >= keys) s[2 * r] = s[2 * r + 1] = -INFINITY;
    }
    if (__any_sync(kWholeWarp, exceeds(s, 0) || exceeds(s, 1))) raise(s);
    float p[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) p[i] = ptx::exp2(s[i] - finite(offset[i % 2]));
#pragma unroll
    for (int c = 0; c < 2; ++c) sum[c] += p[c] + p[c + 2];
    uint32_t high[2], low[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t pair = ptx::pack_bf16(p[2 * r], p[2 * r + 1]);
      const float first = __uint_as_float(pair << 16), second = __uint_as_float(pair & 0xffff0000);
      high[r] = ptx::transpose_8x8(pair);
      low[r] = ptx::transpose_8x8(ptx::pack_bf16(p[2 * r] - first, p[2 * r + 1] - second));
    }
    const int row = lane % 8 + lane / 16 * 8, half = lane / 8 % 2;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t a[4];
      ptx::ldmatrix_x4_trans(a, v.chunk(row, 2 * step + half));
      ptx::mma_m16n8k16(o[step], a, high[0], high[1]);
      ptx::mma_m16n8k16(o[step], a, low[0], low[1]);
    }
  }

  __device__ __forceinline__ void store(WarpSums<Tile> to, int count) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int head = lane % 4 * 2 + c;
#pragma unroll
      for (int step = 4; step < 32; step *= 2) sum[c] += __shfl_xor_sync(kWholeWarp, sum[c], step);
      if (head >= count) continue;
#pragma unroll
      for (int i = 0; i < 2 * kSteps; ++i) to.out(warp, head)[8 * i + lane / 4] = o[i / 2][i % 2 * 2 + c];
      if (lane < 4) {
        to.offset(warp, head) = offset[c];
        to.sum(warp, head) = sum[c];
      }
    }
  }

 private:
  // s becomes c S; two chains of products, each half as long
  template <class Rows>
  __device__ __forceinline__ void scores(Rows k, float (&s)[4]) const {
    const int lane = threadIdx.x % 32, row = lane % 16, half = lane / 16;
    float chain[2][4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t a[4];
      ptx::ldmatrix_x4(a, k.chunk(row, 2 * step + half));
      ptx::mma_m16n8k16(chain[step % 2], a, q[step][0], q[step][1]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) s[i] = score.log2(chain[0][i] + chain[1][i]);
  }
  __device__ __forceinline__ bool exceeds(const float (&s)[4], int c) const {
    return s[c] > offset[c] + kSlack || s[c + 2] > offset[c] + kSlack;
  }
  __device__ __forceinline__ void raise(const float (&s)[4]) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float raised = fmaxf(offset[c], fmaxf(s[c], s[c + 2]));
#pragma unroll
      for (int step = 4; step < 32; step *= 2)
        raised = fmaxf(raised, __shfl_xor_sync(kWholeWarp, raised, step));
      const float factor = ptx::exp2(offset[c] - finite(raised));
      offset[c] = raised;
      sum[c] *= factor;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) o[step][c] *= factor, o[step][c + 2] *= factor;
    }
  }
};

// In fp32, outside the tensor cores. For the scores kLanes lanes share a key, for O each lane has chunks of
// the columns: where a row has fewer chunks than a warp has lanes, of every other key. `kHeads` heads, those
// behind `count` zeros.
template <class Tile, int kHeads_>
struct FmaHeads {
  static constexpr int kHeads = kHeads_, kLanes = 32 / Tile::kKeys;
  static constexpr int kChunks = Tile::kWidth / 4, kKeyLanes = kChunks < 32 ? 2 : 1;
  static constexpr int kOwn = kChunks * kKeyLanes / 32;        // chunks of O
  static constexpr int kScratchFloats = Tile::kKeys * kHeads;  // of each warp
  static_assert(Tile::kElement == 4 && kChunks * kKeyLanes % 32 == 0);

  const float* q;  // shared, [kHeads, kWidth]
  float* p;        // shared, of this warp: [kKeys, kHeads]
  float4 o[kHeads][kOwn] = {};
  float offset[kHeads], sum[kHeads] = {};
  typename Tile::Score score;

  __device__ __forceinline__ FmaHeads(const float* queries, float* scratch, ScoreArgs of_scores)
      : q(queries), p(scratch), score(of_scores) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) offset[h] = -INFINITY;
  }

  template <class Bias = NoBias>
  __device__ __forceinline__ void take(SharedRows<Tile> k, SharedRows<Tile> v, int keys,
                                       const Bias& bias = {}) {
    const int lane = threadIdx.x % 32, key = lane / kLanes, part = lane % kLanes;
    float s[kHeads] = {};
#pragma unroll 4
    for (int c = part; c < kChunks; c += kLanes) {
      const float4 x = four(k, key, c);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const float4 y = *reinterpret_cast<const float4*>(q + h * Tile::kWidth + 4 * c);
        s[h] = fmaf(x.x, y.x, fmaf(x.y, y.y, fmaf(x.z, y.z, fmaf(x.w, y.w, s[h]))));
      }
    }
    bool above = false;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int step = 1; step < kLanes; step *= 2) s[h] += __shfl_xor_sync(kWholeWarp, s[h], step);
      s[h] = score.log2(s[h]);
      if constexpr (Bias::kAny) s[h] = bias.score(s[h], h, key);
      if (key >= keys) s[h] = -INFINITY;
      above |= s[h] > offset[h] + kSlack;
    }
    if (__any_sync(kWholeWarp, above)) raise(s);
    __syncwarp();  // lanes may still read the last tile's p
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const float power = ptx::exp2(s[h] - finite(offset[h]));
      if (part == 0) {
        sum[h] += power;
        p[key * kHeads + h] = power;
      }
    }
    __syncwarp();  // p is there
#pragma unroll
    for (int j = 0; j < Tile::kKeys; j += kKeyLanes) add(v, j + lane / kChunks % kKeyLanes);
  }

  __device__ __forceinline__ void store(WarpSums<Tile> to, int count) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int step = 1; step < 32; step *= 2) sum[h] += __shfl_xor_sync(kWholeWarp, sum[h], step);
      if constexpr (kKeyLanes == 2) o[h][0] = with_other_half(o[h][0]);
      if (h >= count) continue;
#pragma unroll
      for (int i = 0; i < kOwn; ++i)
        if (lane < kChunks) *reinterpret_cast<float4*>(to.out(warp, h) + 4 * (lane + 32 * i)) = o[h][i];
      if (lane == 0) {
        to.offset(warp, h) = offset[h];
        to.sum(warp, h) = sum[h];
      }
    }
  }

 private:
  static __device__ __forceinline__ float4 four(SharedRows<Tile> rows, int row, int c) {
    const uint4 x = ptx::load_shared_uint4(rows.chunk(row, c));
    return {__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(x.z), __uint_as_float(x.w)};
  }
  static __device__ __forceinline__ float4 with_other_half(float4 x) {
    const auto both = [](float y) { return y + __shfl_xor_sync(kWholeWarp, y, 16); };
    return {both(x.x), both(x.y), both(x.z), both(x.w)};
  }
  // O += P V of one key
  __device__ __forceinline__ void add(SharedRows<Tile> v, int key) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const float4 x = four(v, key, lane % kChunks + 32 * i);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const float power = p[key * kHeads + h];
        o[h][i].x = fmaf(power, x.x, o[h][i].x);
        o[h][i].y = fmaf(power, x.y, o[h][i].y);
        o[h][i].z = fmaf(power, x.z, o[h][i].z);
        o[h][i].w = fmaf(power, x.w, o[h][i].w);
      }
    }
  }
  __device__ __forceinline__ void raise(const float (&s)[kHeads]) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float raised = fmaxf(offset[h], s[h]);
#pragma unroll
      for (int step = 1; step < 32; step *= 2)
        raised = fmaxf(raised, __shfl_xor_sync(kWholeWarp, raised, step));
      const float factor = ptx::exp2(offset[h] - finite(raised));
      offset[h] = raised;
      sum[h] *= factor;
#pragma unroll
      for (int i = 0; i < kOwn; ++i)
        o[h][i].x *= factor, o[h][i].y *= factor, o[h][i].z *= factor, o[h][i].w *= factor;
    }
  }
};

}  // namespace tessera::attention::decode
