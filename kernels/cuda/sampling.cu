// The next token of each sequence: kernels/token_draw.h has the method.
//
//   largest_kernel   many blocks a sequence: each the largest x of its part, and its first id
//   draw_kernel      a block a sequence:
//     the largest of all parts; with temperature 0 its first id is the token
//     top_k, top_p: the cut in the order of tokens, where amounts (1, or weights) first reach a sum:
//       by coarse bins of largest - x, so that neighbours in a warp seldom add to the same bin; then, of the
//       tokens of one bin, by the three digits of their order, as in a radix sort; then, of equal ones, by id
//     the draw: sums of weights of the warps, each of which has a run of ids; the warp in which the drawn
//       weight lies; its 32 lanes' packs; the token
//
// All sums are of whole numbers: their order, and so the device, changes nothing.
#include "kernels/base/ptx.cuh"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/token_draw.h"
#include "kernels/workspace.h"

namespace tessera {
namespace {

using Sum = unsigned long long;  // what atomicAdd() takes

constexpr int kPartThreads = 256, kMostParts = 64;
constexpr int kDrawThreads = 512, kDrawWarps = kDrawThreads / kWarp;
constexpr int kBins = 2048;
constexpr float kBinsOfOne = 64;  // coarse bins of a difference of 1 between logits
constexpr int kLoads = 4;         // packs that a lane has under way

struct Part {
  float largest;  // NaN if a logit is
  int32_t first;  // id of the first token with it
};

template <class T>
struct Args {
  const T* logits;
  int64_t padded;  // elements of a row
  int vocab_size, words;
  SamplingRule rule;
  uint64_t seed;
  int32_t *seen, *draws, *starts, *tokens;
  Part* parts;  // [B][count_of_parts]
  int count_of_parts;
};

// x of one token
template <class T>
__device__ __forceinline__ float penalised_at(const Args<T>& a, const int32_t* seen, float logit, int id) {
  if (a.rule.repetition_penalty == 1 || (seen[id / 32] >> (id % 32) & 1) == 0) return logit;
  return penalised(logit, a.rule.repetition_penalty);
}

// visit(id, x) for packs `first`, first + stride, ... below `end` of sequence b; kAtOnce loads under way
template <int kAtOnce, class T, class Visit>
__device__ __forceinline__ void each_token(const Args<T>& a, int b, int first, int end, int stride,
                                           const Visit& visit) {
  constexpr int kWidth = kPackWidth<T>;
  const T* row = a.logits + b * a.padded;
  const int32_t* seen = a.seen + static_cast<int64_t>(b) * a.words;
  for (int at = first; at < end; at += kAtOnce * stride) {
    uint4 raw[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (at + i * stride < end) raw[i] = __ldcg(reinterpret_cast<const uint4*>(row) + at + i * stride);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (at + i * stride >= end) break;
      float x[kWidth];
      unpack<T>(raw[i], x);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const int id = (at + i * stride) * kWidth + j;
        if (id < a.vocab_size) visit(id, penalised_at(a, seen, x[j], id));
      }
    }
  }
}

// The larger one; of equal ones the first; NaN over all
__device__ __forceinline__ Part larger(Part a, Part b) {
  if (isnan(a.largest) || isnan(b.largest)) return isnan(a.largest) ? a : b;
  if (a.largest != b.largest) return a.largest > b.largest ? a : b;
  return a.first < b.first ? a : b;
}

__device__ __forceinline__ Part warp_largest(Part part) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    part = larger(part, {__shfl_xor_sync(kWholeWarp, part.largest, offset),
                         __shfl_xor_sync(kWholeWarp, part.first, offset)});
  return part;
}

// Every thread gets that of the block; `scratch` has a place for each warp.
__device__ __forceinline__ Part block_largest(Part part, Part* scratch) {
  part = warp_largest(part);
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = part;
  __syncthreads();  // every warp reads those of all
  const int lane = threadIdx.x % kWarp;
  return warp_largest(lane < blockDim.x / kWarp ? scratch[lane] : scratch[0]);
}

// Grid: (parts, B)
template <class T>
__global__ __launch_bounds__(kPartThreads) void largest_kernel(const Args<T> a) {
  __shared__ Part scratch[kPartThreads / kWarp];
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  const int b = blockIdx.y, packs = (a.vocab_size + kPackWidth<T> - 1) / kPackWidth<T>;
  Part part{-INFINITY, INT32_MAX};
  each_token<kLoads>(a, b, blockIdx.x * kPartThreads + threadIdx.x, packs, gridDim.x * kPartThreads,
                     [&](int id, float x) {
                       part = larger(part, {x, id});
                     });
  part = block_largest(part, scratch);
  if (threadIdx.x == 0) a.parts[b * gridDim.x + blockIdx.x] = part;
}

// The block of a sequence: what its threads share
template <class T>
struct Draw {
  const Args<T>& a;
  int b;
  float largest;
  Sum* bins;      // [kBins]
  Sum* of_warps;  // [kDrawWarps]

  // A warp has a run of packs, so that runs are in the order of ids.
  __device__ __forceinline__ int begin_of(int warp) const {
    const int packs = (a.vocab_size + kPackWidth<T> - 1) / kPackWidth<T>;
    return min((packs + kDrawWarps - 1) / kDrawWarps * warp, packs);
  }
  template <class Visit>
  __device__ __forceinline__ void each(const Visit& visit) const {
    const int warp = threadIdx.x / kWarp;
    each_token<kLoads>(a, b, begin_of(warp) + threadIdx.x % kWarp, begin_of(warp + 1), kWarp, visit);
  }
  __device__ __forceinline__ Sum weight(float x) const { return weight_of(x, largest, a.rule.temperature); }

  // Sums over the block, and of each warp in of_warps
  __device__ __forceinline__ Sum total(Sum own) const {
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) own += __shfl_xor_sync(kWholeWarp, own, offset);
    __syncthreads();  // the sums before have been read
    if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = own;
    __syncthreads();  // every thread reads those of all
    Sum all = 0;
    for (int w = 0; w < kDrawWarps; ++w) all += of_warps[w];
    return all;
  }

  // The first bin, from `first` in steps of `by`, at which the sum reaches `sought`, which becomes what it
  // lacks before that bin
  template <class Add>
  __device__ __forceinline__ int bin_that_reaches(Sum& sought, bool downwards, const Add& add) const {
    __shared__ int found;
    __shared__ Sum left;
    for (int i = threadIdx.x; i < kBins; i += kDrawThreads) bins[i] = 0;
    __syncthreads();  // before any adds
    add();
    __syncthreads();            // all have added
    if (threadIdx.x < kWarp) {  // a lane has a run of bins
      constexpr int kRun = kBins / kWarp;
      const auto at = [&](int i) { return downwards ? kBins - 1 - i : i; };
      Sum own = 0;
      for (int i = 0; i < kRun; ++i) own += bins[at(threadIdx.x * kRun + i)];
      Sum before = 0;
      for (int lane = 0; lane < kWarp; ++lane) {
        const Sum its = __shfl_sync(kWholeWarp, own, lane);
        if (lane < threadIdx.x) before += its;
      }
      if (before < sought && sought <= before + own) {
        int i = threadIdx.x * kRun;
        Sum lacks = sought - before;
        while (lacks > bins[at(i)]) lacks -= bins[at(i++)];
        found = at(i), left = lacks;
      }
    }
    __syncthreads();  // all read what one lane found
    sought = left;
    const int bin = found;
    __syncthreads();  // before it is written again
    return bin;
  }

  __device__ __forceinline__ int coarse(float x) const {
    const float bin = (largest - x) * kBinsOfOne;
    return bin < kBins - 1 ? static_cast<int>(bin) : kBins - 1;
  }

  // See cut_at() in kernels/cpu/sampling.cpp
  template <class Amount>
  __device__ __forceinline__ TokenCut cut_at(const TokenCut& within, Sum sought, const Amount& amount) const {
    const int of_cut = bin_that_reaches(sought, false, [&] {
      each([&](int id, float x) {
        if (within.keeps(order_of(x), id)) atomicAdd(bins + coarse(x), amount(x));
      });
    });
    uint32_t order = 0;
    int below = 32;
#pragma unroll 1
    for (int i = 0; i < 3; ++i) {
      const int known = below, digit = i < 2 ? 11 : 10;
      below -= digit;
      order |= static_cast<uint32_t>(
                   bin_that_reaches(sought, true,
                                    [&] {
                                      each([&](int id, float x) {
                                        const uint32_t its = order_of(x);
                                        if (coarse(x) != of_cut || !within.keeps(its, id)) return;
                                        if (known < 32 && (its ^ order) >> known != 0) return;
                                        atomicAdd(bins + (its >> below & ((1u << digit) - 1)), amount(x));
                                      });
                                    }))
               << below;
    }
    return {.order = order, .last_id = last_of_equals(within, order, sought, amount)};
  }

  // The id at which the amounts of the tokens with this order, which are equal, reach `sought`
  template <class Amount>
  __device__ __forceinline__ int64_t last_of_equals(const TokenCut& within, uint32_t order, Sum sought,
                                                    const Amount& amount) const {
    Sum count = 0;
    each([&](int id, float x) { count += order_of(x) == order && within.keeps(order, id) ? 1 : 0; });
    const Sum all = total(count), its_amount = amount(number_of(order));
    const Sum kept = its_amount == 0 ? 1 : (sought + its_amount - 1) / its_amount;
    if (kept >= all) return INT64_MAX;
    return id_at(kept - 1, [&](int id, float x) {
      return static_cast<Sum>(order_of(x) == order && within.keeps(order, id));
    });
  }

  // The first id whose sum of amounts, up to and with its own, is above `left`; of_warps has the warps'
  // sums.
  template <class Amount>
  __device__ __forceinline__ int id_at(Sum left, const Amount& amount) const {
    __shared__ int found;
    int owner = 0;
    while (left >= of_warps[owner]) left -= of_warps[owner++];
    const int lane = threadIdx.x % kWarp;
    if (static_cast<int>(threadIdx.x) / kWarp == owner) {
      for (int first = begin_of(owner); first < begin_of(owner + 1); first += kWarp) {
        Sum own = 0;
        const int end = min(first + kWarp, begin_of(owner + 1));  // a pack a lane
        each_token<1>(a, b, first + lane, end, kWarp, [&](int id, float x) { own += amount(id, x); });
        Sum before = 0, all = 0;
        for (int other = 0; other < kWarp; ++other) {
          const Sum its = __shfl_sync(kWholeWarp, own, other);
          all += its;
          if (other < lane) before += its;
        }
        if (left >= all) {
          left -= all;
          continue;
        }
        each_token<1>(a, b, first + lane, end, kWarp, [&](int id, float x) {
          const Sum its = amount(id, x);
          if (before <= left && left < before + its) found = id;
          before += its;
        });
        break;
      }
    }
    __syncthreads();  // all read what one lane found
    return found;
  }

  __device__ __forceinline__ int token() const {
    const SamplingRule& rule = a.rule;
    const int32_t* draws = a.draws + 2 * b;
    TokenCut cut;
    if (rule.top_k > 0 && rule.top_k < a.vocab_size)
      cut = cut_at(cut, static_cast<Sum>(rule.top_k), [](float) { return Sum{1}; });
    if (rule.top_p < 1) {
      Sum own = 0;
      each([&](int id, float x) { own += cut.keeps(order_of(x), id) ? weight(x) : 0; });
      const Sum sought = top_p_weight(rule.top_p, total(own));
      cut = cut_at(cut, sought, [&](float x) { return weight(x); });
    }
    const Sum least = min_p_weight(rule.min_p);
    const auto kept = [&](int id, float x) {
      const Sum its = weight(x);
      return its >= least && cut.keeps(order_of(x), id) ? its : Sum{0};
    };
    Sum own = 0;
    each([&](int id, float x) { own += kept(id, x); });
    const Sum all = total(own);
    return id_at(drawn_weight(a.seed, draws[0], draws[1], all), kept);
  }
};

// Grid: B
template <class T>
__global__ __launch_bounds__(kDrawThreads) void draw_kernel(const Args<T> a) {
  __shared__ Sum bins[kBins], of_warps[kDrawWarps];
  __shared__ Part scratch[kDrawWarps];
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  const int b = blockIdx.x;
  const int32_t start = __ldcg(a.starts + b);
  if (start < 0) {
    if (threadIdx.x == 0) a.tokens[b] = kIdleToken;
    return;
  }
  Part part{-INFINITY, INT32_MAX};
  for (int i = threadIdx.x; i < a.count_of_parts; i += kDrawThreads)
    part = larger(part, a.parts[b * a.count_of_parts + i]);
  part = block_largest(part, scratch);
  int token = part.first;
  const bool drawn = isfinite(part.largest);
  if (drawn && a.rule.temperature != 0)
    token = Draw<T>{.a = a, .b = b, .largest = part.largest, .bins = bins, .of_warps = of_warps}.token();
  __syncthreads();  // all have read what is now written
  if (threadIdx.x != 0) return;
  a.tokens[b] = drawn ? token : kBadLogits;
  a.starts[b] = drawn ? start + 1 : -1;
  if (!drawn) return;
  a.seen[static_cast<int64_t>(b) * a.words + token / 32] |= static_cast<int32_t>(1u << token % 32);
  ++a.draws[2 * b + 1];
}

}  // namespace

void CudaBackend::run_op(const SampleTokens& a, const Launch& on) {
  check_packs(a.kName, {{"logits", a.logits}});
  const int64_t B = a.logits.shape[0];
  with_real_type(a.logits.dtype, [&]<class T>() {
    const int64_t parts = std::min<int64_t>(
        kMostParts, cuda::divide_up(a.vocab_size, int64_t{kLoads} * kPartThreads * kPackWidth<T>));
    const int64_t bytes = B * parts * static_cast<int64_t>(sizeof(Part));
    const Args<T> args{.logits = a.logits.as<T>(),
                       .padded = a.logits.shape[1],
                       .vocab_size = static_cast<int>(a.vocab_size),
                       .words = static_cast<int>(a.seen.shape[1]),
                       .rule = a.rule,
                       .seed = a.seed,
                       .seen = a.seen.as<int32_t>(),
                       .draws = a.draws.as<int32_t>(),
                       .starts = a.starts.as<int32_t>(),
                       .tokens = a.tokens.as<int32_t>(),
                       .parts = reinterpret_cast<Part*>(on.scratch(a.kName, bytes)),
                       .count_of_parts = static_cast<int>(parts)};
    cuda::launch(largest_kernel<T>,
                 {.blocks = parts, .rows = B, .threads = kPartThreads, .overlap = overlaps()}, on.stream,
                 args);
    cuda::launch(draw_kernel<T>, {.blocks = B, .threads = kDrawThreads, .overlap = overlaps()}, on.stream,
                 args);
  });
}

}  // namespace tessera
