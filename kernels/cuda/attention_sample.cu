// Scores of queries, row by row, for the mean entropy of some queries of each head, and for the largest score
// of heads that largest_scores.cu does not serve. A block takes kRows queries of a head: each thread takes
// every kThreads-th key that one of them sees, and keeps for each query
//   m = max s,  z = sum exp(s - m),  w = sum (s - m) exp(s - m),
// of which the entropy is log z - w / z, or m alone. The threads' are merged in a fixed order. Of entropies a
// block for each head then takes the mean over its queries.
#include <cmath>

#include "kernels/attention/common/score.cuh"
#include "kernels/attention/mask.h"
#include "kernels/base/ordered_float.h"
#include "kernels/base/view.h"
#include "kernels/cuda/attention_sample.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/workspace.h"

namespace tessera {
namespace {

constexpr int kThreads = 128;
constexpr int kRows = 8;  // queries of a block

// z = 0: none yet
struct Scores {
  float m = -INFINITY, z = 0, w = 0;

  __device__ __forceinline__ void merge(const Scores& b) {
    if (b.z == 0) return;
    if (z == 0) {
      *this = b;
      return;
    }
    const float most = fmaxf(m, b.m), down = m - most, b_down = b.m - most;
    const float share = expf(down), b_share = expf(b_down);
    w = (w + down * z) * share + (b.w + b_down * b.z) * b_share;
    z = z * share + b.z * b_share;
    m = most;
  }
  // The score of a key; one of -inf has no probability.
  __device__ __forceinline__ void add(float s) {
    if (s != -INFINITY) merge({.m = s, .z = 1, .w = 0});
  }
  __device__ __forceinline__ Scores of_lane_behind(int offset) const {
    return {.m = __shfl_down_sync(kWholeWarp, m, offset),
            .z = __shfl_down_sync(kWholeWarp, z, offset),
            .w = __shfl_down_sync(kWholeWarp, w, offset)};
  }
  // Entropies [sequences, heads, queries]; -inf of a query that sees no key
  using Result = float;
  __device__ __forceinline__ void write(Result* entropies, int64_t head, int64_t row) const {
    entropies[row] = z == 0 ? -INFINITY : logf(z) - w / z;
  }
};

struct Largest {
  float m = -INFINITY;

  __device__ __forceinline__ void merge(const Largest& b) { m = fmaxf(m, b.m); }
  __device__ __forceinline__ void add(float s) { m = fmaxf(m, s); }
  __device__ __forceinline__ Largest of_lane_behind(int offset) const {
    return {__shfl_down_sync(kWholeWarp, m, offset)};
  }
  using Result = uint32_t;  // [heads]
  __device__ __forceinline__ void write(Result* largest, int64_t head, int64_t row) const {
    if (m != -INFINITY) atomicMax(largest + head, ordered_word(m));
  }
};

struct Sample {
  attention::Mask mask;  // of the first sequence
  int64_t group, head_dim, queries;
  attention::ScoreArgs score;
  attention::Alibi alibi;
  float cap;

  __device__ __forceinline__ int query(int64_t number) const {
    return static_cast<int>(queries == mask.queries ? number : AttentionSample::query(number, mask.queries));
  }
};

template <class T, int kStep, class Score, bool kListed, class Found>
__global__ __launch_bounds__(kThreads) void sample_scores_kernel(View<const T> q, View<const T> k, Sample of,
                                                                 typename Found::Result* result,
                                                                 attention::Blocks blocks) {
  extern __shared__ float queries[];  // [kRows][head_dim]
  __shared__ __align__(16) char memory[kRows * (kThreads / kWarp) * sizeof(Found)];
  auto* const warps = reinterpret_cast<Found(*)[kThreads / kWarp]>(memory);
  const int64_t first = int64_t{blockIdx.x} * kRows, h = blockIdx.y, b = blockIdx.z;
  const int rows = static_cast<int>(min(int64_t{kRows}, of.queries - first)),
            D = static_cast<int>(of.head_dim);
  const View<const T> own_q = q.one_head(b, h), own_k = k.one_head(b, h / of.group);
  const attention::Mask mask = of.mask.of_sequence(b);
  for (int i = threadIdx.x; i < kRows * D; i += kThreads)
    queries[i] = i / D < rows ? static_cast<float>(own_q.row_begin(of.query(first + i / D))[i % D]) : 0.0f;
  const float slope = of.alibi ? of.alibi.slope(h) : 0;
  int position[kRows];
  attention::Span seen[kRows], all{mask.keys, 0};
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    seen[r] = r < rows ? mask.keys_of(of.query(first + r)) : attention::Span{0, 0};
    position[r] = r < rows ? mask.position_of(of.query(first + r)) : 0;
    if (!seen[r].empty()) all = {min(all.begin, seen[r].begin), max(all.end, seen[r].end)};
  }
  // Mask::listed_place_of(). It is position[r] unless queries are dealt: to compute it always takes more
  // registers than there are.
  [[maybe_unused]] const auto listed_place = [&](int r) {
    return mask.query_tokens == nullptr ? position[r] : mask.listed_place_of(of.query(first + r));
  };
  __syncthreads();  // the queries are there
  Found scores[kRows];
  for (int key = all.begin + static_cast<int>(threadIdx.x); key < all.end; key += kThreads) {
    const T* row = own_k.row_begin(key);
    float dot[kRows] = {};
    for (int d = 0; d < D; d += kStep) {
      float value[kStep];
      load_step(row + d, value);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int i = 0; i < kStep; ++i) dot[r] += queries[r * D + d + i] * value[i];
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      if (seen[r].contains(key) && (!kListed || blocks.sees(blocks.list_of(h), listed_place(r), key))) {
        float score = Score::value(of.score, dot[r]);
        if (of.cap > 0) score = of.cap * tanhf(score / of.cap);
        scores[r].add(score + attention::alibi_bias(slope, position[r], key));
      }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      const Found other = scores[r].of_lane_behind(offset);
      scores[r].merge(other);
    }
    if (threadIdx.x % kWarp == 0) warps[r][threadIdx.x / kWarp] = scores[r];
  }
  __syncthreads();  // those of all warps are there
  const int r = static_cast<int>(threadIdx.x);
  if (r >= rows) return;
  Found whole = warps[r][0];
  for (int warp = 1; warp < kThreads / kWarp; ++warp) whole.merge(warps[r][warp]);
  whole.write(result, h, (b * gridDim.y + h) * of.queries + first + r);
}

// A block for each head
__global__ __launch_bounds__(kThreads) void mean_of_sample_kernel(const float* entropies, int64_t sequences,
                                                                  int64_t heads, int64_t queries,
                                                                  float* mean) {
  __shared__ float scratch[kMaxWarps][2];
  float sums[2] = {};  // of entropies, of queries
  for (int64_t i = threadIdx.x; i < sequences * queries; i += kThreads) {
    const float one = entropies[(i / queries * heads + blockIdx.x) * queries + i % queries];
    if (one == -INFINITY) continue;
    sums[0] += one, sums[1] += 1;
  }
  block_sum(sums, scratch);
  if (threadIdx.x == 0) mean[blockIdx.x] = sums[1] > 0 ? sums[0] / sums[1] : 0.0f;
}

// Op: AttentionSample or LargestScores
template <class Found, class Op>
void sample_scores(const Op& a, int64_t sequences, int64_t queries, typename Found::Result* result,
                   CUstream_st* stream) {
  const AttentionShape& s = a.plan.shape;
  const Sample of{.mask = mask_of(a.plan, a.tables),
                  .group = s.group(),
                  .head_dim = s.head_dim,
                  .queries = queries,
                  .score = {.scale = a.plan.scale},
                  .alibi = attention::alibi_of(attn_problem(a.plan)),
                  .cap = s.scores.cap};
  with_real_type(a.plan.dtype, [&]<class T>() {
    const View<const T> q = heads_of<const T>(a.q), k = heads_of<const T>(a.k);
    const auto launch = [&]<int kStep>() {
      const dim3 grid(static_cast<unsigned>(cuda::divide_up(queries, kRows)), static_cast<unsigned>(s.heads),
                      static_cast<unsigned>(sequences));
      const size_t shared = static_cast<size_t>(kRows * s.head_dim) * sizeof(float);
      const attention::Blocks blocks = blocks_of(a.plan, a.tables);
      const auto kernel = blocks ? sample_scores_kernel<T, kStep, attention::ScaledScore, true, Found>
                                 : sample_scores_kernel<T, kStep, attention::ScaledScore, false, Found>;
      kernel<<<grid, kThreads, shared, stream>>>(q, k, of, result, blocks);
    };
    const bool packs = reinterpret_cast<uintptr_t>(k.data) % 16 == 0 && s.head_dim % kPackWidth<T> == 0;
    packs ? launch.template operator()<kPackWidth<T>>() : launch.template operator()<1>();
  });
  TESSERA_CUDA_LAUNCHED();
}

}  // namespace

void CudaBackend::run_op(const AttentionSample& a, const Launch& on) {
  const AttentionShape& s = a.plan.shape;
  const int64_t sequences = AttentionSample::sequences(s), queries = AttentionSample::queries(s);
  auto* entropies = reinterpret_cast<float*>(
      on.scratch(a.kName, sequences * s.heads * queries * static_cast<int64_t>(sizeof(float))));
  sample_scores<Scores>(a, sequences, queries, entropies, on.stream);
  mean_of_sample_kernel<<<static_cast<unsigned>(s.heads), kThreads, 0, on.stream>>>(
      entropies, sequences, s.heads, queries, a.entropy.as<float>());
  TESSERA_CUDA_LAUNCHED();
}

void largest_scores_of_rows(const LargestScores& a, CUstream_st* stream) {
  const AttentionShape& s = a.plan.shape;
  sample_scores<Largest>(a, s.batch, s.tokens, a.largest.as<uint32_t>(), stream);
}

}  // namespace tessera
