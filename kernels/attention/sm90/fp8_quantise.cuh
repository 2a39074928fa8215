// Q, K and V to e4m3, before the forward in FP8.
//
// A block of 128 rows of a head has one scale: its largest magnitude becomes 448, the largest of e4m3. Each
// row of Q and K is first multiplied ("turned") by H diag(signs) / sqrt(D), where H is a Hadamard matrix.
// The matrix is orthogonal, so q k^T does not change. It spreads large numbers of a few columns
// over all columns; else they would set the scale, and the other columns would lose precision (Chee et al.,
// arXiv:2307.13304; Shah et al., arXiv:2407.08608, 3.3).
//
// V is written transposed, since FP8 tensor cores need the dimension that they sum over to be contiguous.
// Each 16 keys are in the order in which the accumulators of four threads q = 0 to 3 hold a row of scores:
// byte 4 q + e is key 2 q + e % 2 + 8 (e / 2), e = 0 to 3. So P becomes an operand of P V without leaving
// its thread.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "kernels/attention/common/launch.cuh"
#include "kernels/attention/common/view.h"
#include "kernels/attention/sm90/fp8_shape.h"

namespace tessera::attention::sm90 {

inline constexpr float kLargestE4m3 = 448;

struct Fp8QuantiseArgs {
  View<const __nv_bfloat16> q, k, v;
  Fp8Workspace to;
  int tokens, kv_tokens, heads, kv_heads, head_dim;
};

// The sign bit of a column: b0 b1 + b2 b3 + b4 b5 + b6 b7 modulo 2, where the b are the bits of its number.
// At widths 64 and 256 it is a bent function (Rothaus, "On 'bent' functions", 1976), at 128 nearly one: it
// is far from every row of H. So H diag(signs) also spreads rows of Q and K that look like a row of H, such
// as a row of equal numbers.
__device__ __forceinline__ uint32_t fp8_sign(int column) {
  return static_cast<uint32_t>(__popc(column & column >> 1 & 0x55)) << 31;
}

// A row of a block: a thread has up to 32 of its columns
template <int kWidth>
struct Fp8Row {
  static constexpr int kThreadsOfRow = kWidth == 256 ? 8 : 4, kThreads = kFp8Block * kThreadsOfRow;
  static constexpr int kCount = kWidth / kThreadsOfRow;

  float x[kCount];

  static __device__ __forceinline__ int row() { return threadIdx.x / kThreadsOfRow; }
  static __device__ __forceinline__ int column() { return threadIdx.x % kThreadsOfRow * kCount; }

  // 0 past the end and past the head
  __device__ __forceinline__ void load(const __nv_bfloat16* from, bool inside, int head_dim) {
#pragma unroll
    for (int i = 0; i < kCount; i += 8) {
      uint4 words = make_uint4(0, 0, 0, 0);
      if (inside && column() + i < head_dim) words = *reinterpret_cast<const uint4*>(from + column() + i);
      const uint32_t four[] = {words.x, words.y, words.z, words.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        x[i + 2 * j] = __uint_as_float(four[j] << 16);
        x[i + 2 * j + 1] = __uint_as_float(four[j] & 0xffff0000u);
      }
    }
  }
  // x becomes H diag(signs) x: sqrt(kWidth) times an orthogonal matrix
  __device__ __forceinline__ void turn() {
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = __uint_as_float(__float_as_uint(x[i]) ^ fp8_sign(column() + i));
#pragma unroll
    for (int apart = 1; apart < kCount; apart *= 2) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if ((i & apart) == 0) {
          const float a = x[i], b = x[i + apart];
          x[i] = a + b, x[i + apart] = a - b;
        }
      }
    }
#pragma unroll
    for (int apart = 1; apart < kThreadsOfRow; apart *= 2) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float other = __shfl_xor_sync(~0u, x[i], apart);
        x[i] = (threadIdx.x & apart) == 0 ? x[i] + other : other - x[i];
      }
    }
  }
  // The largest magnitude of the block, in every thread; above 0
  __device__ __forceinline__ float largest() const {
    __shared__ float of_warps[kThreads / 32];
    float all = 1e-30f;
#pragma unroll
    for (int i = 0; i < kCount; ++i) all = fmaxf(all, fabsf(x[i]));
#pragma unroll
    for (int apart = 1; apart < 32; apart *= 2) all = fmaxf(all, __shfl_xor_sync(~0u, all, apart));
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = all;
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < kThreads / 32; ++warp) all = fmaxf(all, of_warps[warp]);
    return all;
  }
  // In e4m3, `times` x: 16 columns from `column` on to at(column)
  template <class At>
  __device__ __forceinline__ void store(At&& at, float times) const {
    const auto pair = [&](int i) -> uint32_t {
      return __nv_cvt_float2_to_fp8x2(make_float2(x[i] * times, x[i + 1] * times), __NV_SATFINITE, __NV_E4M3);
    };
#pragma unroll
    for (int i = 0; i < kCount; i += 16) {
      *reinterpret_cast<uint4*>(at(column() + i)) =
          make_uint4(pair(i) | pair(i + 2) << 16, pair(i + 4) | pair(i + 6) << 16,
                     pair(i + 8) | pair(i + 10) << 16, pair(i + 12) | pair(i + 14) << 16);
    }
  }
};

// Each CTA takes one block of one head: first come the blocks of Q, then of K, then of V.
template <int kWidth>
__global__ void __launch_bounds__(Fp8Row<kWidth>::kThreads)
    fp8_quantise_kernel(const __grid_constant__ Fp8QuantiseArgs a) {
  using Row = Fp8Row<kWidth>;
  const int q_blocks = static_cast<int>(a.to.q_blocks), k_blocks = static_cast<int>(a.to.k_blocks);
  const int of_batch = a.heads * q_blocks + 2 * a.kv_heads * k_blocks, batch = blockIdx.x / of_batch;
  int item = blockIdx.x % of_batch;
  Row x;
  const auto load = [&](const View<const __nv_bfloat16>& from, int head, int block, int tokens) {
    const int64_t row = int64_t{block} * kFp8Block + Row::row();
    x.load(from.data + batch * from.batch + head * from.head + row * from.row, row < tokens, a.head_dim);
  };
  const auto turn = [&](const View<const __nv_bfloat16>& from, int heads, int blocks, int tokens, uint8_t* to,
                        float* scales) {
    const int head = item / blocks, block = item % blocks;
    load(from, head, block, tokens);
    x.turn();
    const float largest = x.largest();
    const int64_t place = (int64_t{batch} * heads + head) * blocks + block;
    uint8_t* row = to + (place * kFp8Block + Row::row()) * Fp8Tile<kWidth>::kRowBytes;
    x.store([&](int column) { return row + column; }, kLargestE4m3 / largest);
    // As if turned by an orthogonal matrix
    if (threadIdx.x == 0) scales[place] = largest / kLargestE4m3 / sqrtf(kWidth);
  };
  if (item < a.heads * q_blocks) return turn(a.q, a.heads, q_blocks, a.tokens, a.to.q, a.to.q_scales);
  item -= a.heads * q_blocks;
  if (item < a.kv_heads * k_blocks)
    return turn(a.k, a.kv_heads, k_blocks, a.kv_tokens, a.to.k, a.to.k_scales);
  item -= a.kv_heads * k_blocks;

  // A word has four columns of one key, and a row the words of a key. The word's number is XORed with a
  // multiple of 4 that differs from one group of 16 keys to the next, so that a warp reads from all banks.
  constexpr int kWords = kWidth / 4, kKeys = 16, kGroups = kFp8Block / kKeys;
  __shared__ __align__(16) uint32_t words[kFp8Block * kWords];
  const auto word_at = [](int key, int word) { return key * kWords + (word ^ key / kKeys * 4 % kWords); };
  const int head = item / k_blocks, block = item % k_blocks;
  load(a.v, head, block, a.kv_tokens);
  const float largest = x.largest();
  const int64_t of_head = int64_t{batch} * a.kv_heads + head;
  if (threadIdx.x == 0) a.to.v_scales[of_head * k_blocks + block] = largest / kLargestE4m3;
  x.store([&](int column) { return &words[word_at(Row::row(), column / 4)]; }, kLargestE4m3 / largest);
  __syncthreads();
  for (int i = threadIdx.x; i < kWords * kGroups; i += Row::kThreads) {
    const int group = i % kGroups, word = i / kGroups;
    uint32_t of_keys[kKeys];
#pragma unroll
    for (int key = 0; key < kKeys; ++key) of_keys[key] = words[word_at(group * kKeys + key, word)];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      uint32_t of_column[4];
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        const uint32_t two = c | (4 + c) << 4;
        of_column[q] = __byte_perm(__byte_perm(of_keys[2 * q], of_keys[2 * q + 1], two),
                                   __byte_perm(of_keys[2 * q + 8], of_keys[2 * q + 9], two), 0x5410);
      }
      uint8_t* to =
          a.to.v + ((of_head * kWidth + word * 4 + c) * k_blocks + block) * kFp8Block + group * kKeys;
      *reinterpret_cast<uint4*>(to) = make_uint4(of_column[0], of_column[1], of_column[2], of_column[3]);
    }
  }
}

// To what the workspace of the forward has room for
template <int kWidth>
AttnStatus fp8_quantise(const AttnForward& f, const Fp8Workspace& to, CUstream_st* stream) {
  const AttnProblem& p = f.problem;
  const Fp8QuantiseArgs args = {.q = view<const __nv_bfloat16>(f.q),
                                .k = view<const __nv_bfloat16>(f.k),
                                .v = view<const __nv_bfloat16>(f.v),
                                .to = to,
                                .tokens = static_cast<int>(p.tokens),
                                .kv_tokens = static_cast<int>(p.kv_tokens),
                                .heads = static_cast<int>(p.heads),
                                .kv_heads = static_cast<int>(p.kv_heads),
                                .head_dim = p.head_dim};
  const int64_t ctas = p.batch * (p.heads * to.q_blocks + 2 * p.kv_heads * to.k_blocks);
  return launch(fp8_quantise_kernel<kWidth>, dim3(static_cast<unsigned>(ctas)), Fp8Row<kWidth>::kThreads, 0,
                stream, args);
}

}  // namespace tessera::attention::sm90
