// The arithmetic between the products of the backward, on accumulators of
// a warpgroup: 64 keys by kBlockQ queries.
#pragma once

#include "kernels/attention/common/dropout.cuh"
#include "kernels/attention/sm90/backward_args.cuh"
#include "kernels/base/ptx.cuh"

namespace tessera::attention::sm90 {

// Scores of keys that a query does not see become -inf. `key` and `query` are those of element (0, 0).
template <int kCount>
__device__ __forceinline__ void mask_transposed(float (&s)[kCount], int key, int query, bool causal,
                                                int tokens) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % kWarpsPerGroup;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = key + 16 * warp + 8 * r + lane / 4;
    const int first_query = row >= tokens ? 0x7fffffff : causal ? row : 0;
    const int limit = first_query - query - lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kCount / 4; ++n) {
      if (8 * n < limit) s[4 * n + 2 * r] = -INFINITY;
      if (8 * n + 1 < limit) s[4 * n + 2 * r + 1] = -INFINITY;
    }
  }
}

// The same for any mask, with the queries that see a thread's two keys: seeing_of(), which is called while
// the scores are under way. Queries past the end have probability 0 whatever their scores.
__device__ __forceinline__ Span seeing_of(int key, int r, const Mask& mask) {
  const int row = key + lane_row() + 8 * r;
  return row < mask.keys ? mask.queries_of(row) : Span{0, 0};
}
template <int kCount>
__device__ __forceinline__ void mask_transposed(float (&s)[kCount], int query, const Span (&seeing)[2]) {
  const int first = query + threadIdx.x % 4 * 2;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int begin = seeing[r].begin - first, end = seeing[r].end - first;
#pragma unroll
    for (int n = 0; n < kCount / 4; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (8 * n + e < begin || 8 * n + e >= end) s[4 * n + 2 * r + e] = -INFINITY;
      }
    }
  }
}

// Statistics of the columns' queries, the first few of which are loaded before the wait
// for the products that they are needed with.
struct ColumnStatistics {
  static constexpr int kEarly = 4;
  uint32_t at;  // of this thread's first column; the next is 8 columns on
  float2 early[kEarly];

  __device__ __forceinline__ explicit ColumnStatistics(uint32_t rows) : at(rows + threadIdx.x % 4 * 8) {
#pragma unroll
    for (int n = 0; n < kEarly; ++n) early[n] = ptx::load_shared_float2(at + n * 32);
  }
  __device__ __forceinline__ float2 operator[](int n) const {
    return n < kEarly ? early[n] : ptx::load_shared_float2(at + n * 32);
  }
};

// Puts a cap on scores, with a rule that has one.
template <class Score, int kCount>
__device__ __forceinline__ void cap_scores(float (&s)[kCount], const ScoreCap& cap) {
  if constexpr (Score::kCapped) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) s[i] = cap.fast(s[i]);
  }
}

// s = 2^(c s - L), with the L of a thread's two rows; with a cap Y: see wide_args.cuh
template <class Score, int kCount>
__device__ __forceinline__ void rows_to_probabilities(float (&s)[kCount], const auto& score,
                                                      const ScoreCap& cap, const float (&log2_sum_exp)[2]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float own = s[i];
    s[i] = ptx::exp2(score.log2_above(own, log2_sum_exp[i / 2 % 2]));
    if constexpr (Score::kCapped) s[i] *= cap.derivative(own);
  }
}

// s = 2^(c s - L)
template <class Score, int kCount>
__device__ __forceinline__ void scores_to_probabilities(float (&s)[kCount], const Score& score,
                                                        const ColumnStatistics& log2_sum_exp) {
#pragma unroll
  for (int n = 0; n < kCount / 4; ++n) {
    const float2 l = log2_sum_exp[n];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      s[4 * n + e] = ptx::exp2(score.log2_above(s[4 * n + e], e % 2 ? l.y : l.x));
    }
  }
}

// The same with a bias of each row, log2(e) times
template <class Score, int kCount>
__device__ __forceinline__ void scores_to_probabilities(float (&s)[kCount], const Score& score,
                                                        const ColumnStatistics& log2_sum_exp,
                                                        const float (&bias)[2]) {
#pragma unroll
  for (int n = 0; n < kCount / 4; ++n) {
    const float2 l = log2_sum_exp[n];
#pragma unroll
    for (int e = 0; e < 4; ++e)
      s[4 * n + e] = ptx::exp2(score.log2_above(s[4 * n + e], (e % 2 ? l.y : l.x) - bias[e / 2]));
  }
}

// The same of scores that a cap is put on, and Y: see wide_args.cuh
template <class Score, int kCount>
__device__ __forceinline__ void capped_to_probabilities(float (&s)[kCount], uint32_t (&y)[kCount / 2],
                                                        const Score& score, const ScoreCap& cap,
                                                        const ColumnStatistics& log2_sum_exp) {
#pragma unroll
  for (int i = 0; i < kCount; i += 2) {
    const float2 l = log2_sum_exp[i / 4];
    const float a = s[i], b = s[i + 1];
    s[i] = ptx::exp2(score.log2_above(a, l.x)), s[i + 1] = ptx::exp2(score.log2_above(b, l.y));
    y[i / 2] = ptx::pack_bf16(s[i] * cap.derivative(a), s[i + 1] * cap.derivative(b));
  }
}

// p becomes dS, both packed. gradients_of(n) gives the function (P, dP, e) -> dS of two queries: e = 0 and 1
// are columns 8 n and 8 n + 1, counted from this thread's first one.
template <int kCount>
__device__ __forceinline__ void replace_by_gradients(uint32_t (&p)[kCount / 2], const float (&dp)[kCount],
                                                     const auto& gradients_of) {
#pragma unroll
  for (int n = 0; n < kCount / 4; ++n) {
    const auto gradient = gradients_of(n);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      uint32_t& two = p[2 * n + r];
      two = ptx::pack_bf16(gradient(__uint_as_float(two << 16), dp[4 * n + 2 * r], 0),
                           gradient(__uint_as_float(two & 0xffff0000), dp[4 * n + 2 * r + 1], 1));
    }
  }
}

// dS = P (dP - delta); with kDropout, of p after KeyMasks::drop().
template <bool kDropout, int kCount>
__device__ __forceinline__ void score_gradients(uint32_t (&p)[kCount / 2], const float (&dp)[kCount],
                                                const ColumnStatistics& delta) {
  replace_by_gradients(p, dp, [&](int n) {
    return [d = delta[n]](float p, float dp, int e) {
      const float delta = e == 0 ? d.x : d.y;
      if constexpr (kDropout) return fmaf(p, dp, -(before_drop(p) * delta));
      return p * (dp - delta);
    };
  });
}

// The same with a cap, whose derivative follows from P. `log2_sum_exp`: the queries' statistics, in shared
// memory
template <int kCount>
__device__ __forceinline__ void capped_score_gradients(uint32_t (&p)[kCount / 2], const float (&dp)[kCount],
                                                       const ColumnStatistics& delta, uint32_t log2_sum_exp,
                                                       const ScoreCap& cap) {
  replace_by_gradients(p, dp, [&](int n) {
    const float2 d = delta[n], l = ptx::load_shared_float2(log2_sum_exp + threadIdx.x % 4 * 8 + n * 32);
    return [&cap, d, l](float p, float dp, int e) {
      return p * cap.derivative(p, e == 0 ? l.x : l.y) * (dp - (e == 0 ? d.x : d.y));
    };
  });
}

}  // namespace tessera::attention::sm90
