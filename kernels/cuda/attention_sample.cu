// The largest score and the mean entropy of some queries of each head. A block takes kRows queries of a head:
// each thread takes every kThreads-th key that one of them sees, and keeps for each query
//   m = max s,  z = sum exp(s - m),  w = sum (s - m) exp(s - m),
// of which the entropy is log z - w / z. The threads' are merged in a fixed order. Then a block for each head
// takes the maximum and the mean over its queries.
#include <cmath>

#include "kernels/attention/common/score.cuh"
#include "kernels/attention/mask.h"
#include "kernels/base/view.h"
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
  float m, z, w;

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
  __device__ __forceinline__ float entropy() const { return logf(z) - w / z; }
};

struct Sample {
  attention::Mask mask;  // of the first sequence
  int64_t group, head_dim, queries;
  attention::ScoreArgs score;
  attention::Alibi alibi;
  float cap;

  __device__ __forceinline__ int query(int64_t number) const {
    return static_cast<int>(AttentionSample::query(number, mask.queries));
  }
};

// sampled [sequences, heads, queries, 2]: the largest score of a query, -inf where it sees none; its entropy
template <class T, int kStep, class Score, bool kListed>
__global__ __launch_bounds__(kThreads) void sample_scores_kernel(View<const T> q, View<const T> k, Sample of,
                                                                 float* sampled, attention::Blocks blocks) {
  extern __shared__ float queries[];  // [kRows][head_dim]
  __shared__ Scores warps[kRows][kThreads / kWarp];
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
  __syncthreads();  // the queries are there
  Scores scores[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) scores[r] = {.m = -INFINITY, .z = 0, .w = 0};
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
      if (seen[r].contains(key) && (!kListed || blocks.sees(blocks.list_of(h), position[r], key))) {
        float score = Score::value(of.score, dot[r]);
        if (of.cap > 0) score = of.cap * tanhf(score / of.cap);
        scores[r].add(score + attention::alibi_bias(slope, position[r], key));
      }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      const Scores& mine = scores[r];
      const Scores other{.m = __shfl_down_sync(kWholeWarp, mine.m, offset),
                         .z = __shfl_down_sync(kWholeWarp, mine.z, offset),
                         .w = __shfl_down_sync(kWholeWarp, mine.w, offset)};
      scores[r].merge(other);
    }
    if (threadIdx.x % kWarp == 0) warps[r][threadIdx.x / kWarp] = scores[r];
  }
  __syncthreads();  // those of all warps are there
  const int r = static_cast<int>(threadIdx.x);
  if (r >= rows) return;
  Scores whole = warps[r][0];
  for (int warp = 1; warp < kThreads / kWarp; ++warp) whole.merge(warps[r][warp]);
  float* to = sampled + 2 * ((b * gridDim.y + h) * of.queries + first + r);
  to[0] = whole.m, to[1] = whole.z == 0 ? 0.0f : whole.entropy();
}

// A block for each head
__global__ __launch_bounds__(kThreads) void mean_of_sample_kernel(const float* sampled, int64_t sequences,
                                                                  int64_t heads, int64_t queries,
                                                                  float* largest_and_entropy) {
  __shared__ float maxima[kMaxWarps], scratch[kMaxWarps][2];
  float most = -INFINITY, sums[2] = {};  // of entropies, of queries
  for (int64_t i = threadIdx.x; i < sequences * queries; i += kThreads) {
    const float* one = sampled + 2 * ((i / queries * heads + blockIdx.x) * queries + i % queries);
    if (one[0] == -INFINITY) continue;
    most = fmaxf(most, one[0]);
    sums[0] += one[1], sums[1] += 1;
  }
  most = warp_max(most);
  if (threadIdx.x % kWarp == 0) maxima[threadIdx.x / kWarp] = most;
  block_sum(sums, scratch);  // it has a barrier
  if (threadIdx.x > 0) return;
  for (int warp = 0; warp < kThreads / kWarp; ++warp) most = fmaxf(most, maxima[warp]);
  largest_and_entropy[2 * blockIdx.x] = most;
  largest_and_entropy[2 * blockIdx.x + 1] = sums[1] > 0 ? sums[0] / sums[1] : 0.0f;
}

}  // namespace

void CudaBackend::run_op(const AttentionSample& a, const Launch& on) {
  const AttentionShape& s = a.plan.shape;
  const int64_t sequences = AttentionSample::sequences(s), queries = AttentionSample::queries(s);
  auto* sampled = reinterpret_cast<float*>(
      on.scratch(a.kName, 2 * sequences * s.heads * queries * static_cast<int64_t>(sizeof(float))));
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
      const auto kernel = blocks ? sample_scores_kernel<T, kStep, attention::ScaledScore, true>
                                 : sample_scores_kernel<T, kStep, attention::ScaledScore, false>;
      kernel<<<grid, kThreads, shared, on.stream>>>(q, k, of, sampled, blocks);
    };
    const bool packs = reinterpret_cast<uintptr_t>(k.data) % 16 == 0 && s.head_dim % kPackWidth<T> == 0;
    packs ? launch.template operator()<kPackWidth<T>>() : launch.template operator()<1>();
  });
  TESSERA_CUDA_LAUNCHED();
  mean_of_sample_kernel<<<static_cast<unsigned>(s.heads), kThreads, 0, on.stream>>>(
      sampled, sequences, s.heads, queries, a.largest_and_entropy.as<float>());
  TESSERA_CUDA_LAUNCHED();
}

}  // namespace tessera
