// A mixture of experts but for its products: choices of experts, their rows, gates, sums over a token's rows.
//
//   choose          a warp a token: k times the largest logit behind the last one, by (logit, -expert)
//   choose backward a warp a token, in place
//   assign          choices sorted by expert, stable, in three passes over chunks of choices:
//                     count   a warp a chunk: of each expert how many
//                     begin   a block: the first row of each expert, and of each chunk in it
//                     place   a warp a chunk, 32 choices at a time: those of one expert in their order
//   sample          a block: a warp a token at a time, then the sum of the warps
//   gated backward  a block a row; the gradient of its weight is the sum of dy h over it
//   add shared      a thread a pack of a token; its backward a block a token
//   sum             a thread a pack of a token: over its k rows, in their order
#include <limits>

#include "kernels/cuda/activations.cuh"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/fp8_values.cuh"
#include "kernels/cuda/gates.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"

namespace tessera {
namespace {

constexpr int kTokens = 8, kTokenThreads = kTokens * kWarp;  // of a block of choices, a warp each
constexpr int kChunk = 2048;                                 // choices that a warp sorts
constexpr int kBeginThreads = 1024, kRowThreads = 128, kSumThreads = 256, kSampleThreads = 1024;
constexpr float kLowest = -std::numeric_limits<float>::infinity();

// A logit and its expert; the lower expert is the larger of equals. NaN is the lowest.
struct Candidate {
  float logit;
  int expert;
  __device__ bool above(const Candidate& other) const {
    return logit > other.logit || (logit == other.logit && expert < other.expert);
  }
};
__device__ __forceinline__ float logit_of(float value) { return value == value ? value : kLowest; }

// The largest of the warp's candidates below `last`
__device__ __forceinline__ Candidate next_choice(const float* logits, int experts, const Candidate& last) {
  Candidate best{kLowest, INT32_MAX};
  for (int e = threadIdx.x % kWarp; e < experts; e += kWarp) {
    const Candidate one{logit_of(logits[e]), e};
    if (last.above(one) && one.above(best)) best = one;
  }
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const Candidate other{__shfl_xor_sync(kWholeWarp, best.logit, offset),
                          __shfl_xor_sync(kWholeWarp, best.expert, offset)};
    if (other.above(best)) best = other;
  }
  return best;
}

__device__ __forceinline__ float sum_of_exponentials(const float* logits, int experts, float largest) {
  float sum = 0;
  for (int e = threadIdx.x % kWarp; e < experts; e += kWarp) sum += expf(logits[e] - largest);
  return warp_sum(sum);
}

struct ChooseArgs {
  const float* logits;
  int32_t* choices;
  float* weights;
  int64_t tokens;
  int experts, active;
  bool of_chosen;  // the weights are a softmax of the chosen logits
};
__global__ __launch_bounds__(kTokenThreads) void choose_kernel(ChooseArgs a) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kTokens + threadIdx.x / kWarp;
  if (token >= a.tokens) return;
  const float* logits = a.logits + token * a.experts;
  const int lane = threadIdx.x % kWarp;
  float largest = 0, chosen = 0;
  float own[ChooseExperts::kMost / kWarp] = {};  // the lane's logits of choices lane, lane + 32
  Candidate last{-kLowest, -1};
  for (int j = 0; j < a.active; ++j) {
    last = next_choice(logits, a.experts, last);
    if (j == 0) largest = last.logit;
    chosen += expf(last.logit - largest);
    if (j % kWarp != lane) continue;
    own[j / kWarp] = last.logit;
    a.choices[token * a.active + j] = last.expert;
  }
  const float sum = a.of_chosen ? chosen : sum_of_exponentials(logits, a.experts, largest);
#pragma unroll
  for (int i = 0; i < ChooseExperts::kMost / kWarp; ++i) {
    const int j = i * kWarp + lane;
    if (j < a.active) a.weights[token * a.active + j] = expf(own[i] - largest) / sum;
  }
}

struct ChooseBackwardArgs {
  float* logits;
  const int32_t *choices, *counts, *counted;
  const float* d_weights;
  int64_t tokens;
  int experts, active, ranks;  // ranks: of counts; 0: none
  bool of_chosen;
  float balance, z;
};
__global__ __launch_bounds__(kTokenThreads) void choose_backward_kernel(ChooseBackwardArgs a) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kTokens + threadIdx.x / kWarp;
  if (token >= a.tokens) return;
  float* logits = a.logits + token * a.experts;
  const int lane = threadIdx.x % kWarp;
  constexpr int kOwn = ChooseExperts::kMost / kWarp;
  float largest = kLowest;
  for (int e = lane; e < a.experts; e += kWarp) largest = fmaxf(largest, logits[e]);
  largest = warp_max(largest);
  const float all = sum_of_exponentials(logits, a.experts, largest);
  int expert[kOwn];
  float exponential[kOwn], gradient[kOwn], chosen = 0, of_chosen = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int j = i * kWarp + lane;
    const bool is_choice = j < a.active;
    expert[i] = is_choice ? a.choices[token * a.active + j] : -1;
    exponential[i] = is_choice ? expf(logits[expert[i]] - largest) : 0;
    gradient[i] = is_choice ? a.d_weights[token * a.active + j] : 0;
    chosen += exponential[i], of_chosen += exponential[i] * gradient[i];
  }
  chosen = warp_sum(chosen), of_chosen = warp_sum(of_chosen);
  const bool counts = a.ranks > 0 && (!a.counted || a.counted[token] != 0);
  const auto count_of = [&](int e) {
    float count = 0;
    for (int r = 0; r < a.ranks; ++r) count += static_cast<float>(a.counts[r * a.experts + e]);
    return count;
  };
  float choices_of_step = 0;
  if (counts)
    for (int e = lane; e < a.experts; e += kWarp) choices_of_step += count_of(e);
  choices_of_step = warp_sum(choices_of_step);
  const float share = choices_of_step > 0 ? static_cast<float>(a.active) / choices_of_step : 0;
  // The gradient of p that every token has that counts
  const auto even = [&](int e) { return counts ? a.balance * share * share * count_of(e) : 0.0f; };
  float mean = 0;
  if (counts) {
    for (int e = lane; e < a.experts; e += kWarp) mean += expf(logits[e] - largest) * even(e);
    mean = warp_sum(mean);
  }
  mean = (mean + (a.of_chosen ? 0 : of_chosen)) / all;
  const float of_z = 2 * a.z * share * (largest + logf(all));
  __syncwarp();  // the logits of all choices have been read
  for (int e = lane; e < a.experts; e += kWarp)
    logits[e] = expf(logits[e] - largest) / all * (even(e) - mean + of_z);
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kOwn; ++i)
    if (expert[i] >= 0)
      logits[expert[i]] += a.of_chosen ? exponential[i] / chosen * (gradient[i] - of_chosen / chosen)
                                       : exponential[i] / all * gradient[i];
}

struct AssignArgs {
  const int32_t* choices;
  int32_t *offsets, *rows, *places;
  int32_t* of_chunks;  // [chunks, E]: how many, then the first row
  int64_t count;       // of choices
  int experts, chunks;
};
// The warp's choices of a chunk, 32 at a time: place(choice, next[expert]) for each, which then is one more
template <class Place>
__device__ __forceinline__ void each_choice(const AssignArgs& a, int32_t* next, const Place& place) {
  const int lane = threadIdx.x;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kChunk;
  for (int first = 0; first < kChunk && begin + first < a.count; first += kWarp) {
    const int64_t i = begin + first + lane;
    const int expert = i < a.count ? a.choices[i] : -1;
    const unsigned same = __match_any_sync(kWholeWarp, static_cast<unsigned>(expert));
    const int before = __popc(same & ((1u << lane) - 1));
    const int32_t at = expert >= 0 ? next[expert] + before : 0;
    __syncwarp();
    if (expert >= 0 && before == 0) next[expert] += __popc(same);
    __syncwarp();
    if (expert >= 0) place(i, at);
  }
}
__global__ __launch_bounds__(kWarp) void count_choices_kernel(AssignArgs a) {
  extern __shared__ int32_t counts[];
  for (int e = threadIdx.x; e < a.experts; e += kWarp) counts[e] = 0;
  __syncwarp();
  each_choice(a, counts, [](int64_t, int32_t) {});
  for (int e = threadIdx.x; e < a.experts; e += kWarp)
    a.of_chunks[static_cast<int64_t>(blockIdx.x) * a.experts + e] = counts[e];
}
__global__ __launch_bounds__(kBeginThreads) void begin_experts_kernel(AssignArgs a) {
  extern __shared__ int32_t begins[];  // [E + 1]
  for (int e = threadIdx.x; e < a.experts; e += kBeginThreads) {
    int32_t sum = 0;
    for (int chunk = 0; chunk < a.chunks; ++chunk)
      sum += a.of_chunks[static_cast<int64_t>(chunk) * a.experts + e];
    begins[e + 1] = sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    begins[0] = 0;
    for (int e = 0; e < a.experts; ++e) begins[e + 1] += begins[e];
  }
  __syncthreads();
  for (int e = threadIdx.x; e <= a.experts; e += kBeginThreads) a.offsets[e] = begins[e];
  for (int e = threadIdx.x; e < a.experts; e += kBeginThreads) {
    int32_t next = begins[e];
    for (int chunk = 0; chunk < a.chunks; ++chunk) {
      int32_t& of_chunk = a.of_chunks[static_cast<int64_t>(chunk) * a.experts + e];
      const int32_t count = of_chunk;
      of_chunk = next, next += count;
    }
  }
}
__global__ __launch_bounds__(kWarp) void place_choices_kernel(AssignArgs a) {
  extern __shared__ int32_t next[];
  for (int e = threadIdx.x; e < a.experts; e += kWarp)
    next[e] = a.of_chunks[static_cast<int64_t>(blockIdx.x) * a.experts + e];
  __syncwarp();
  each_choice(a, next,
              [&](int64_t i, int32_t row) { a.rows[row] = static_cast<int32_t>(i), a.places[i] = row; });
}

// Whole numbers: in any order the sum is the same.
__global__ __launch_bounds__(kSumThreads) void count_kernel(const int32_t* choices, const int32_t* counted,
                                                            int64_t count, int active, int32_t* counts) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kSumThreads + threadIdx.x;
  if (i < count && (!counted || counted[i / active] != 0)) atomicAdd(counts + choices[i], 1);
}

template <class T, class Fp8>
struct GatedBackwardArgs {
  const T *dy, *gate_up;
  T* d_gate_up;
  Fp8 fp8_values;
  const int32_t *rows, *choices;
  float* weights;
  const T *d_sum, *bias;  // [N, C] [E, C]; null: the next layer has no biases
  int width, channels, active;
};
template <class Of, class T, class Fp8>
__global__ __launch_bounds__(kRowThreads) void gated_experts_backward_kernel(GatedBackwardArgs<T, Fp8> a) {
  constexpr int kWidth = kPackWidth<T>;
  ResultWriter<Fp8> result(a.fp8_values);
  __shared__ float scratch[kMaxWarps][1];
  const int64_t row = blockIdx.x;
  const int32_t choice = a.rows[row];
  const int width = a.width;
  const float weight = a.weights[choice];
  float sum[1] = {0};
  if (a.bias) {
    const T* d_sum = a.d_sum + static_cast<int64_t>(choice / a.active) * a.channels;
    const T* bias = a.bias + static_cast<int64_t>(a.choices[choice]) * a.channels;
    for (int c = threadIdx.x; c < a.channels; c += kRowThreads)
      sum[0] += static_cast<float>(d_sum[c]) * static_cast<float>(bias[c]);
  }
  for (int f = threadIdx.x * kWidth; f < width; f += kRowThreads * kWidth) {
    float d[kWidth], gate[kWidth], up[kWidth];
    load_floats(a.dy + row * width + f, d);
    load_floats(a.gate_up + row * 2 * width + f, gate);
    load_floats(a.gate_up + row * 2 * width + width + f, up);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      sum[0] += d[i] * Of::forward(gate[i], up[i]);
      const cuda::GateGradients gradients = Of::backward(weight * d[i], gate[i], up[i]);
      gate[i] = gradients.gate, up[i] = gradients.up;
    }
    result.store(a.d_gate_up, row * 2 * width + f, gate);
    result.store(a.d_gate_up, row * 2 * width + width + f, up);
  }
  result.end();
  block_sum(sum, scratch);  // behind its barrier every thread has read the weight
  if (threadIdx.x == 0) a.weights[choice] = sum[0];
}

__global__ __launch_bounds__(kSampleThreads) void sample_router_kernel(const float* logits,
                                                                       const int32_t* offsets, float* loads,
                                                                       float* entropy, int64_t tokens,
                                                                       int experts) {
  __shared__ float scratch[kMaxWarps][1];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const float average = static_cast<float>(offsets[experts]) / static_cast<float>(experts);
  for (int e = threadIdx.x; e < experts; e += kSampleThreads)
    loads[e] = static_cast<float>(offsets[e + 1] - offsets[e]) / average;
  float sum[1] = {0};
  for (int64_t n = warp; n < tokens; n += kSampleThreads / kWarp) {
    const float* of_token = logits + n * experts;
    float largest = kLowest, all = 0, weighed = 0;
    for (int e = lane; e < experts; e += kWarp) largest = fmaxf(largest, of_token[e]);
    largest = warp_max(largest);
    for (int e = lane; e < experts; e += kWarp) {
      const float below = of_token[e] - largest, p = expf(below);
      all += p;
      if (p > 0) weighed += p * below;
    }
    all = warp_sum(all), weighed = warp_sum(weighed);
    if (lane == 0) sum[0] += logf(all) - weighed / all;
  }
  block_sum(sum, scratch);
  if (threadIdx.x == 0) *entropy = sum[0] / static_cast<float>(tokens);
}

template <class T>
struct SumArgs {
  const T *x, *add;
  const int32_t* places;
  const float* weights;
  T* y;
  int64_t packs;
  int packs_of_row, active;
};
template <class T>
__global__ __launch_bounds__(kSumThreads) void sum_experts_kernel(SumArgs<T> a) {
  constexpr int kWidth = kPackWidth<T>;
  const int64_t pack = static_cast<int64_t>(blockIdx.x) * kSumThreads + threadIdx.x;
  if (pack >= a.packs) return;
  const int64_t token = pack / a.packs_of_row, column = pack % a.packs_of_row * kWidth,
                channels = static_cast<int64_t>(a.packs_of_row) * kWidth;
  float sum[kWidth] = {};
  if (a.add) load_floats(a.add + pack * kWidth, sum);
  for (int j = 0; j < a.active; ++j) {
    const int64_t choice = token * a.active + j;
    const float weight = a.weights ? a.weights[choice] : 1.0f;
    float x[kWidth];
    load_floats(a.x + a.places[choice] * channels + column, x);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum[i] += weight * x[i];
  }
  store_floats(a.y + pack * kWidth, sum);
}

template <class T>
__global__ __launch_bounds__(kSumThreads) void add_shared_kernel(const T* x, const float* logits,
                                                                 const T* add, T* y, int64_t packs,
                                                                 int packs_of_row) {
  constexpr int kWidth = kPackWidth<T>;
  const int64_t pack = static_cast<int64_t>(blockIdx.x) * kSumThreads + threadIdx.x;
  if (pack >= packs) return;
  const float gate = cuda::sigmoid(logits[pack / packs_of_row]);
  float sum[kWidth], own[kWidth];
  load_floats(add + pack * kWidth, sum);
  load_floats(x + pack * kWidth, own);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) sum[i] += gate * own[i];
  store_floats(y + pack * kWidth, sum);
}

template <class T>
__global__ __launch_bounds__(kRowThreads) void add_shared_backward_kernel(const T* dy, const T* x,
                                                                          float* d_logits, T* dx,
                                                                          int channels) {
  constexpr int kWidth = kPackWidth<T>;
  __shared__ float scratch[kMaxWarps][1];
  const int64_t row = blockIdx.x;
  const float gate = cuda::sigmoid(d_logits[row]);
  float sum[1] = {0};
  for (int c = threadIdx.x * kWidth; c < channels; c += kRowThreads * kWidth) {
    float d[kWidth], own[kWidth];
    load_floats(dy + row * channels + c, d);
    load_floats(x + row * channels + c, own);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum[0] += d[i] * own[i], d[i] *= gate;
    store_floats(dx + row * channels + c, d);
  }
  block_sum(sum, scratch);  // behind its barrier every thread has read the logit
  if (threadIdx.x == 0) d_logits[row] = gate * (1 - gate) * sum[0];
}

}  // namespace

void CudaBackend::run_op(const ChooseExperts& a, const Launch& on) {
  const int64_t tokens = a.logits.shape[0];
  const ChooseArgs args{.logits = a.logits.as<float>(),
                        .choices = a.choices.as<int32_t>(),
                        .weights = a.weights.as<float>(),
                        .tokens = tokens,
                        .experts = static_cast<int>(a.logits.shape[1]),
                        .active = static_cast<int>(a.choices.shape[1]),
                        .of_chosen = a.rule.sums_to_one()};
  choose_kernel<<<cuda::divide_up(tokens, kTokens), kTokenThreads, 0, on.stream>>>(args);
  TESSERA_CUDA_LAUNCHED();
}

void CudaBackend::run_op(const ChooseExpertsBackward& a, const Launch& on) {
  const int64_t tokens = a.logits.shape[0];
  const ChooseBackwardArgs args{.logits = a.logits.as<float>(),
                                .choices = a.choices.as<int32_t>(),
                                .counts = a.counts.as<int32_t>(),
                                .counted = a.counted.as<int32_t>(),
                                .d_weights = a.d_weights.as<float>(),
                                .tokens = tokens,
                                .experts = static_cast<int>(a.logits.shape[1]),
                                .active = static_cast<int>(a.choices.shape[1]),
                                .ranks = a.counts ? static_cast<int>(a.counts.shape[0]) : 0,
                                .of_chosen = a.rule.sums_to_one(),
                                .balance = a.balance,
                                .z = a.z};
  choose_backward_kernel<<<cuda::divide_up(tokens, kTokens), kTokenThreads, 0, on.stream>>>(args);
  TESSERA_CUDA_LAUNCHED();
}

void CudaBackend::run_op(const AssignExperts& a, const Launch& on) {
  const int64_t count = a.choices.numel(), experts = a.offsets.shape[0] - 1,
                chunks = cuda::divide_up(count, kChunk);
  const AssignArgs args{.choices = a.choices.as<int32_t>(),
                        .offsets = a.offsets.as<int32_t>(),
                        .rows = a.rows.as<int32_t>(),
                        .places = a.places.as<int32_t>(),
                        .of_chunks = reinterpret_cast<int32_t*>(
                            on.scratch(a.kName, chunks * experts * static_cast<int64_t>(sizeof(int32_t)))),
                        .count = count,
                        .experts = static_cast<int>(experts),
                        .chunks = static_cast<int>(chunks)};
  const auto blocks = static_cast<unsigned>(chunks);
  const size_t shared = static_cast<size_t>(experts + 1) * sizeof(int32_t);
  count_choices_kernel<<<blocks, kWarp, shared, on.stream>>>(args);
  TESSERA_CUDA_LAUNCHED();
  begin_experts_kernel<<<1, kBeginThreads, shared, on.stream>>>(args);
  TESSERA_CUDA_LAUNCHED();
  place_choices_kernel<<<blocks, kWarp, shared, on.stream>>>(args);
  TESSERA_CUDA_LAUNCHED();
  if (!a.counts) return;
  const auto each = static_cast<unsigned>(cuda::divide_up(count, kSumThreads));
  count_kernel<<<each, kSumThreads, 0, on.stream>>>(args.choices, a.counted.as<int32_t>(), count,
                                                    static_cast<int>(a.choices.shape[1]),
                                                    a.counts.as<int32_t>());
  TESSERA_CUDA_LAUNCHED();
}

void CudaBackend::run_op(const RouterSample& a, const Launch& on) {
  sample_router_kernel<<<1, kSampleThreads, 0, on.stream>>>(
      a.logits.as<float>(), a.offsets.as<int32_t>(), a.loads.as<float>(), a.entropy.as<float>(),
      a.logits.shape[0], static_cast<int>(a.logits.shape[1]));
  TESSERA_CUDA_LAUNCHED();
}

void CudaBackend::run_op(const GatedExpertsBackward& a, const Launch& on) {
  check_packs(a.kName, {{"dy", a.dy}, {"gate_up", a.gate_up}, {"d_gate_up", a.d_gate_up}});
  check_aligned(a.kName, {{"fp8_d_gate_up", a.fp8_d_gate_up.y.data}});
  with_real_type(a.dy.dtype, [&]<class T>() {
    with_fp8<T, __NV_E5M2>(a.fp8_d_gate_up, [&]<class Fp8>(Fp8 fp8_values) {
      const GatedBackwardArgs<T, Fp8> args{.dy = a.dy.as<T>(),
                                           .gate_up = a.gate_up.as<T>(),
                                           .d_gate_up = a.d_gate_up.as<T>(),
                                           .fp8_values = fp8_values,
                                           .rows = a.rows.as<int32_t>(),
                                           .choices = a.choices.as<int32_t>(),
                                           .weights = a.weights.as<float>(),
                                           .d_sum = a.d_sum.as<T>(),
                                           .bias = a.bias.as<T>(),
                                           .width = static_cast<int>(a.dy.shape[1]),
                                           .channels = a.bias ? static_cast<int>(a.bias.shape[1]) : 0,
                                           .active = static_cast<int>(a.weights.shape[1])};
      cuda::with_gate(a.gate, [&]<class Of>(Of) {
        gated_experts_backward_kernel<Of><<<a.dy.shape[0], kRowThreads, 0, on.stream>>>(args);
      });
    });
  });
  TESSERA_CUDA_LAUNCHED();
}

void CudaBackend::run_op(const SumExperts& a, const Launch& on) {
  check_packs(a.kName, {{"x", a.x}, {"add", a.add}, {"y", a.y}});
  with_real_type(a.y.dtype, [&]<class T>() {
    const int64_t packs = a.y.numel() / kPackWidth<T>;
    const SumArgs<T> args{.x = a.x.as<T>(),
                          .add = a.add.as<T>(),
                          .places = a.places.as<int32_t>(),
                          .weights = a.weights.as<float>(),
                          .y = a.y.as<T>(),
                          .packs = packs,
                          .packs_of_row = static_cast<int>(a.y.shape[1] / kPackWidth<T>),
                          .active = static_cast<int>(a.places.shape[1])};
    const auto blocks = static_cast<unsigned>(cuda::divide_up(packs, kSumThreads));
    sum_experts_kernel<T><<<blocks, kSumThreads, 0, on.stream>>>(args);
  });
  TESSERA_CUDA_LAUNCHED();
}

void CudaBackend::run_op(const AddShared& a, const Launch& on) {
  check_packs(a.kName, {{"x", a.x}, {"add", a.add}, {"y", a.y}});
  with_real_type(a.y.dtype, [&]<class T>() {
    const int64_t packs = a.y.numel() / kPackWidth<T>;
    const auto blocks = static_cast<unsigned>(cuda::divide_up(packs, kSumThreads));
    add_shared_kernel<T>
        <<<blocks, kSumThreads, 0, on.stream>>>(a.x.as<T>(), a.logits.as<float>(), a.add.as<T>(), a.y.as<T>(),
                                                packs, static_cast<int>(a.y.shape[1] / kPackWidth<T>));
  });
  TESSERA_CUDA_LAUNCHED();
}

void CudaBackend::run_op(const AddSharedBackward& a, const Launch& on) {
  check_packs(a.kName, {{"dy", a.dy}, {"x", a.x}, {"dx", a.dx}});
  with_real_type(a.dy.dtype, [&]<class T>() {
    add_shared_backward_kernel<T><<<static_cast<unsigned>(a.dy.shape[0]), kRowThreads, 0, on.stream>>>(
        a.dy.as<T>(), a.x.as<T>(), a.d_logits.as<float>(), a.dx.as<T>(), static_cast<int>(a.dy.shape[1]));
  });
  TESSERA_CUDA_LAUNCHED();
}

}  // namespace tessera
