// The kernels of naive attention between its matrix operations: see attention.cu.
#pragma once

#include "kernels/attention/alibi.h"
#include "kernels/attention/blocks.h"
#include "kernels/attention/choice.h"
#include "kernels/attention/mask.h"
#include "kernels/base/dropout.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"

namespace tessera::cuda::naive_attention {

constexpr int kThreads = 128;

// The keys that the query of a row sees: rows are [sequences, heads, queries], from the mask's sequence on.
__device__ inline attention::Span seen_by_row(int64_t row, int64_t heads, const attention::Mask& mask) {
  return mask.of_sequence(row / (heads * mask.queries)).keys_of(static_cast<int>(row % mask.queries));
}
// Where a thread of a row begins, among the steps that have a key of it
template <int kStep>
__device__ int64_t first_step(attention::Span seen) {
  return (seen.begin / kStep + int64_t{threadIdx.x}) * kStep;
}
// Whether the step from key k on has a key of the row
template <int kStep>
__device__ bool overlaps(int64_t k, attention::Span seen) {
  return k < seen.end && k + kStep > seen.begin;
}

// What scores have beside their scale
template <class T>
struct OwnScores {
  const T* sinks = nullptr;  // [heads]; null: none
  attention::Alibi alibi = {};
  float cap = 0;

  explicit operator bool() const { return sinks != nullptr || static_cast<bool>(alibi) || cap > 0; }
};

// Without sparse blocks
struct NoBlocks {
  __device__ bool sees(int64_t /*row*/, int64_t /*head*/, int /*listed_place*/, int64_t /*key*/) const {
    return true;
  }
};
struct ListedBlocks {
  attention::Blocks blocks;

  __device__ bool sees(int64_t /*row*/, int64_t head, int listed_place, int64_t key) const {
    return blocks.sees(blocks.list_of(head), listed_place, static_cast<int>(key));
  }
};
struct ChosenKeys {
  attention::Chosen chosen;
  attention::Mask mask;  // of the first sequence
  int64_t heads;

  __device__ bool sees(int64_t row, int64_t /*head*/, int /*listed_place*/, int64_t key) const {
    const attention::Mask own = mask.of_sequence(row / (heads * mask.queries));
    return chosen.sees(row, chosen.choice.own(own, static_cast<int>(row % mask.queries)),
                       static_cast<int>(key));
  }
};

// One block a row, in place. What a query may not see becomes 0; it is not read. kOwn: `own` is not empty.
template <class T, int kStep, bool kOwn, class Lists>
__global__ __launch_bounds__(kThreads) void masked_softmax_kernel(T* scores, int64_t heads,
                                                                  attention::Mask mask, OwnScores<T> own,
                                                                  Lists lists) {
  __shared__ float maxima[kMaxWarps], scratch[kMaxWarps][1];
  T* row = scores + blockIdx.x * int64_t{mask.keys};
  const attention::Span seen = seen_by_row(blockIdx.x, heads, mask);
  const int64_t head = blockIdx.x / mask.queries % heads;
  float slope = 0;
  int position = 0;
  if constexpr (kOwn) {
    const int64_t b = blockIdx.x / (heads * mask.queries);
    if (own.alibi) slope = own.alibi.slope(head);
    position = mask.of_sequence(b).position_of(static_cast<int>(blockIdx.x % mask.queries));
  }
  const int listed_place = mask.listed_place_of(static_cast<int>(blockIdx.x % mask.queries));
  const auto sees = [&](int64_t k) {
    return seen.contains(k) && lists.sees(blockIdx.x, head, listed_place, k);
  };
  const auto load_scores = [&](int64_t k, float(&to)[kStep]) {
    load_step(row + k, to);
    if constexpr (kOwn) {
#pragma unroll
      for (int i = 0; i < kStep; ++i) {
        if (own.cap > 0) to[i] = own.cap * tanhf(to[i] / own.cap);
        to[i] += attention::alibi_bias(slope, position, static_cast<int>(k) + i);
      }
    }
  };
  float value[kStep];
  float maximum = -INFINITY;
  for (int64_t k = first_step<kStep>(seen); k < seen.end; k += kThreads * kStep) {
    load_scores(k, value);
#pragma unroll
    for (int i = 0; i < kStep; ++i) maximum = sees(k + i) ? fmaxf(maximum, value[i]) : maximum;
  }
  maximum = warp_max(maximum);
  if (threadIdx.x % kWarp == 0) maxima[threadIdx.x / kWarp] = maximum;
  __syncthreads();  // every thread reads the maxima of all warps
  for (int w = 0; w < kThreads / kWarp; ++w) maximum = fmaxf(maximum, maxima[w]);
  float sink = -INFINITY;
  if constexpr (kOwn) {
    if (own.sinks != nullptr) sink = static_cast<float>(own.sinks[head]);
    maximum = fmaxf(maximum, sink);
  }

  float sum[1] = {};
  for (int64_t k = first_step<kStep>(seen); k < seen.end; k += kThreads * kStep) {
    load_scores(k, value);
#pragma unroll
    for (int i = 0; i < kStep; ++i) sum[0] += sees(k + i) ? __expf(value[i] - maximum) : 0.0f;
  }
  block_sum(sum, scratch);
  if constexpr (kOwn) sum[0] += __expf(sink - maximum);

  const float scale = 1 / sum[0];
  for (int64_t k = threadIdx.x * kStep; k < mask.keys; k += kThreads * kStep) {
    if (overlaps<kStep>(k, seen)) load_scores(k, value);
#pragma unroll
    for (int i = 0; i < kStep; ++i) value[i] = sees(k + i) ? __expf(value[i] - maximum) * scale : 0.0f;
    store_step(row + k, value);
  }
}

// dS = scale P (dP - rowsum(P dP)), over dP. One block a row. of_sinks [rows]: what each adds to -ds
template <class T, int kStep, bool kSinks>
__global__ __launch_bounds__(kThreads) void softmax_backward_kernel(const T* probabilities, T* gradients,
                                                                    int64_t heads, attention::Mask mask,
                                                                    float scale, float* of_sinks) {
  constexpr int kSums = kSinks ? 2 : 1;
  __shared__ float scratch[kMaxWarps][kSums];
  const T* p_row = probabilities + blockIdx.x * int64_t{mask.keys};
  T* d_row = gradients + blockIdx.x * int64_t{mask.keys};
  const attention::Span seen = seen_by_row(blockIdx.x, heads, mask);
  float p[kStep] = {}, d[kStep] = {};
  float sum[kSums] = {};
  for (int64_t k = first_step<kStep>(seen); k < seen.end; k += kThreads * kStep) {
    load_step(p_row + k, p);
    load_step(d_row + k, d);
#pragma unroll
    for (int i = 0; i < kStep; ++i) sum[0] += seen.contains(k + i) ? p[i] * d[i] : 0.0f;
    if constexpr (kSinks) {
#pragma unroll
      for (int i = 0; i < kStep; ++i) sum[1] += seen.contains(k + i) ? p[i] : 0.0f;
    }
  }
  block_sum(sum, scratch);
  if constexpr (kSinks)
    if (threadIdx.x == 0) of_sinks[blockIdx.x] = (1 - sum[1]) * sum[0];
  for (int64_t k = threadIdx.x * kStep; k < mask.keys; k += kThreads * kStep) {
    if (overlaps<kStep>(k, seen)) {
      load_step(p_row + k, p);
      load_step(d_row + k, d);
    }
#pragma unroll
    for (int i = 0; i < kStep; ++i) d[i] = seen.contains(k + i) ? scale * p[i] * (d[i] - sum[0]) : 0.0f;
    store_step(d_row + k, d);
  }
}

// Where scores s have a cap c, dS times the derivative of it, 1 - tanh(s / c)^2
template <class T>
__global__ __launch_bounds__(kThreads) void cap_gradient_kernel(const T* scores, T* gradients, int64_t count,
                                                                float cap) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const float t = tanhf(static_cast<float>(scores[i]) / cap), d = static_cast<float>(gradients[i]);
  gradients[i] = T(d == 0 ? 0.0f : d * (1 - t * t));  // what is hidden stays 0
}

// dsinks[h] = -(the sum of of_sinks [batch, heads, queries] over all rows of head h). One block a head.
template <class T>
__global__ __launch_bounds__(kThreads) void sink_gradient_kernel(const float* of_sinks, int64_t batch,
                                                                 int64_t queries, T* dsinks,
                                                                 bool accumulate) {
  __shared__ float scratch[kMaxWarps][1];
  float sum[1] = {};
  for (int64_t i = threadIdx.x; i < batch * queries; i += kThreads)
    sum[0] += of_sinks[(i / queries * gridDim.x + blockIdx.x) * queries + i % queries];
  block_sum(sum, scratch);
  if (threadIdx.x > 0) return;
  T& to = dsinks[blockIdx.x];
  to = T((accumulate ? static_cast<float>(to) : 0.0f) - sum[0]);
}

// `to` = what is kept of the matrices `from` [H, T, N] of sequence b, else 0; `to` may be `from`. A warp
// takes a row: a lane draws for 32 columns, and all lanes then take these together.
template <class T>
__global__ __launch_bounds__(kThreads) void drop_kernel(const T* from, T* to, int64_t rows,
                                                        attention::Mask mask, DropoutMask dropout,
                                                        uint32_t b) {
  const int64_t row = blockIdx.x * int64_t{kThreads / kWarp} + threadIdx.x / kWarp;
  if (row >= rows) return;
  const auto head = static_cast<uint32_t>(row / mask.queries);
  const int token = mask.token_of(static_cast<int>(row % mask.queries));
  const int64_t keys = mask.keys;
  const int lane = threadIdx.x % kWarp;
  for (int64_t first = 0; first < keys; first += kWarp * 32) {
    const uint32_t drawn = dropout.kept(b, head, token, static_cast<uint32_t>(first / 32) + lane);
    for (int block = 0; block < kWarp; ++block) {
      const uint32_t kept = __shfl_sync(kWholeWarp, drawn, block);
      const int64_t column = first + 32 * block + lane;
      if (column < keys) to[row * keys + column] = kept >> lane & 1 ? from[row * keys + column] : T(0.0f);
    }
  }
}

}  // namespace tessera::cuda::naive_attention
