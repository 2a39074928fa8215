// The rotary embedding, with or without QK norm: one pass over the heads of queries and keys.
//
// A group of lanes, a power of two up to a warp, takes some heads of one token. A lane holds a step of the
// low half of a head and the same step of the high half: both elements of its pairs. It loads their angles
// once for all heads that the group takes. With QK norm the sum over a head is one over the lanes of a
// group. A step is a pack of 16 bytes; where half a head is no multiple of it, a lane takes up to kMaxSteps
// single pairs. Channels that are not rotated follow, in pairs of their halves with the angle 0.
#include <bit>

#include "kernels/base/documents.h"
#include "kernels/base/ptx.cuh"
#include "kernels/cuda/column_sum.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/workspace.h"

namespace tessera {
namespace {

constexpr int kMaxHeadDim = 256;
constexpr int kMaxSteps = kMaxHeadDim / 2 / kWarp;  // of single pairs
constexpr int kForwardThreads = 256, kBackwardThreads = 128;
// Heads that a group takes at once. The backward of QK norm holds two tensors and the sums of the weights.
constexpr int kForwardHeads = 4, kBackwardHeads = 2;
static_assert(cuda::kMaxSlabs * 2 * kMaxHeadDim * 4 <= cuda::kGemmWorkspaceBytes);  // partial sums of weights

// How the work is dealt out: of a token's heads, group i of `groups` takes heads i, i + groups, ...
struct Deal {
  uint32_t total;  // groups of all tokens
  int groups, lanes;
  int T, heads, query_heads, D;
  int rotated;                        // pairs of a head that are rotated, up to D / 2
  const int32_t *positions, *starts;  // see given_position()

  __device__ __forceinline__ int64_t position(uint32_t n) const {
    return given_position(positions, starts, n, static_cast<uint32_t>(T));
  }
  // The channels of pair i
  __device__ __forceinline__ int low(int i) const { return i < rotated ? i : i + rotated; }
  __device__ __forceinline__ int high(int i) const { return i < rotated ? i + rotated : i + D / 2; }
};

// kStep elements as they lie in memory
template <class T, int kStep>
struct Step {
  uint4 raw = {};
  __device__ __forceinline__ void load(const T* from) { raw = load_pack(from); }
  __device__ __forceinline__ void to_floats(float (&to)[kStep]) const { unpack<T>(raw, to); }
};
template <class T>
struct Step<T, 1> {
  T raw = static_cast<T>(0.0f);
  __device__ __forceinline__ void load(const T* from) { raw = *from; }
  __device__ __forceinline__ void to_floats(float (&to)[1]) const { to[0] = static_cast<float>(raw); }
};

// By value, so that both stay in registers
template <class T, int kStep>
__device__ __forceinline__ Step<T, kStep> either(bool first, Step<T, kStep> a, Step<T, kStep> b) {
  if constexpr (kStep == 1) {
    return {first ? a.raw : b.raw};
  } else {
    return {{first ? a.raw.x : b.raw.x, first ? a.raw.y : b.raw.y, first ? a.raw.z : b.raw.z,
             first ? a.raw.w : b.raw.w}};
  }
}

// What a lane holds of a head. Steps beyond the head are zeros.
template <class T, int kStep, int kSteps>
struct Part {
  Step<T, kStep> low[kSteps], high[kSteps];

  __device__ __forceinline__ void load(const T* head, int lane, const Deal& deal) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int i = (lane + s * deal.lanes) * kStep;
      if (i >= deal.D / 2) continue;
      low[s].load(head + deal.low(i));
      high[s].load(head + deal.high(i));
    }
  }
};

template <int kStep, int kSteps>
struct Angles {
  float cos[kSteps][kStep], sin[kSteps][kStep];

  __device__ __forceinline__ void load(const float2* row, int lane, const Deal& deal) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int i = (lane + s * deal.lanes) * kStep;
      if (i >= deal.rotated) {
#pragma unroll
        for (int j = 0; j < kStep; ++j) cos[s][j] = 1, sin[s][j] = 0;
        continue;
      }
      if constexpr (kStep == 1) {
        cos[s][0] = row[i].x, sin[s][0] = row[i].y;
      } else {
#pragma unroll
        for (int j = 0; j < kStep; j += 2) {
          const float4 two = *reinterpret_cast<const float4*>(row + i + j);
          cos[s][j] = two.x, sin[s][j] = two.y, cos[s][j + 1] = two.z, sin[s][j + 1] = two.w;
        }
      }
    }
  }
};

// The sums over the lanes of every group of a warp
template <int kValues>
__device__ __forceinline__ void group_sum(float (&values)[kValues], int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) values[i] += __shfl_xor_sync(kWholeWarp, values[i], offset);
  }
}

// Where the rotated heads of keys and the heads of values go, too: row starts[b] + t of caches
// [B, capacity, K, D], of a ring the remainder. Heads of values follow those of x in the deal.
template <class T>
struct ToCache {
  View<const T> v = {};
  T *k_cache = nullptr, *v_cache = nullptr;
  int64_t capacity = 0;
  int kv_heads = 0;
  bool ring = false;

  // The row of head `kv_head` of token n; null where the sequence is idle, or full
  __device__ __forceinline__ T* place(T* cache, const Deal& deal, uint32_t n, int kv_head) const {
    const uint32_t b = n / static_cast<uint32_t>(deal.T);
    const int64_t start = __ldcg(deal.starts + b);
    int64_t row = start + n - int64_t{b} * deal.T;
    if (ring) row %= capacity;
    if (start < 0 || row >= capacity) return nullptr;
    return cache + ((b * capacity + row) * kv_heads + kv_head) * deal.D;
  }
};

// y = rotate(x), or with kNorm rotate(x rstd (offset + weight)). `direction` is 1, or -1 for the transpose. A
// thread loads all that it reads before it stores, so y may be x.
template <class T, int kStep, int kSteps, bool kNorm, bool kCache>
__global__ __launch_bounds__(kForwardThreads) void rotary_kernel(View<const T> x, View<T> y,
                                                                 const float2* angles, float direction,
                                                                 const T* q_weight, const T* k_weight,
                                                                 float epsilon, float offset, float* rstds,
                                                                 ToCache<T> to_cache, Deal deal) {
  const int lane = threadIdx.x & (deal.lanes - 1), pairs = deal.D / 2;
  const uint32_t group = (blockIdx.x * kForwardThreads + threadIdx.x) / deal.lanes;
  const bool exists = group < deal.total;
  const uint32_t n = group / deal.groups, first_head = group - n * deal.groups;
  const auto head_of = [&](int k) { return static_cast<int>(first_head) + k * deal.groups; };
  const auto mine = [&](int k) {
    return exists && head_of(k) < deal.heads + (kCache ? to_cache.kv_heads : 0);
  };
  const auto is_value = [&](int k) { return kCache && head_of(k) >= deal.heads; };

  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  Part<T, kStep, kSteps> held[kForwardHeads], weight[2];
  Angles<kStep, kSteps> angle = {};
#pragma unroll
  for (int k = 0; k < kForwardHeads; ++k)
    if (mine(k))
      held[k].load(is_value(k) ? to_cache.v.row_begin(n) + (head_of(k) - deal.heads) * to_cache.v.head
                               : x.row_begin(n) + head_of(k) * x.head,
                   lane, deal);
  if (exists) angle.load(angles + deal.position(n) * deal.rotated, lane, deal);

  float rstd[kForwardHeads] = {}, low[kStep], high[kStep];
  if constexpr (kNorm) {
    const float inverse_of_D = 1.0f / static_cast<float>(deal.D);
    weight[0].load(q_weight, lane, deal), weight[1].load(k_weight, lane, deal);
#pragma unroll
    for (int k = 0; k < kForwardHeads; ++k)
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        held[k].low[s].to_floats(low), held[k].high[s].to_floats(high);
#pragma unroll
        for (int j = 0; j < kStep; ++j) rstd[k] += low[j] * low[j] + high[j] * high[j];
      }
    group_sum(rstd, deal.lanes);
#pragma unroll
    for (int k = 0; k < kForwardHeads; ++k) {
      rstd[k] = rsqrtf(rstd[k] * inverse_of_D + epsilon);
      if (mine(k) && !is_value(k) && lane == 0)
        rstds[static_cast<int64_t>(n) * deal.heads + head_of(k)] = rstd[k];
    }
  }

#pragma unroll
  for (int k = 0; k < kForwardHeads; ++k) {
    if (!mine(k)) continue;
    T* to = is_value(k) ? nullptr : y.row_begin(n) + head_of(k) * y.head;
    T* cached = nullptr;
    if (kCache && head_of(k) >= deal.query_heads)
      cached = is_value(k) ? to_cache.place(to_cache.v_cache, deal, n, head_of(k) - deal.heads)
                           : to_cache.place(to_cache.k_cache, deal, n, head_of(k) - deal.query_heads);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int i = (lane + s * deal.lanes) * kStep;
      if (i >= pairs) continue;
      held[k].low[s].to_floats(low), held[k].high[s].to_floats(high);
      if (is_value(k)) {
        if (cached) store_step(cached + deal.low(i), low), store_step(cached + deal.high(i), high);
        continue;
      }
      if constexpr (kNorm) {
        const bool is_query = head_of(k) < deal.query_heads;
        float w_low[kStep], w_high[kStep];
        either(is_query, weight[0].low[s], weight[1].low[s]).to_floats(w_low);
        either(is_query, weight[0].high[s], weight[1].high[s]).to_floats(w_high);
#pragma unroll
        for (int j = 0; j < kStep; ++j) {
          low[j] *= rstd[k] * (offset + w_low[j]);
          high[j] *= rstd[k] * (offset + w_high[j]);
        }
      }
#pragma unroll
      for (int j = 0; j < kStep; ++j) {
        const float cos = angle.cos[s][j], sin = direction * angle.sin[s][j], l = low[j];
        low[j] = l * cos - high[j] * sin;
        high[j] = high[j] * cos + l * sin;
      }
      store_step(to + deal.low(i), low);
      store_step(to + deal.high(i), high);
      if (cached) store_step(cached + deal.low(i), low), store_step(cached + deal.high(i), high);
    }
  }
}

// Sums what the lanes of all groups of a block hold, [queries or keys][low or high half][step][element], and
// stores it as the block's part of both weights' gradients: partial[2 D].
template <int kStep, int kSteps>
__device__ __forceinline__ void store_weight_gradients(float (&sums)[2][2][kSteps][kStep], int lane,
                                                       const Deal& deal, float* partial) {
  constexpr int kWarps = kBackwardThreads / kWarp;
  __shared__ float of_warps[kWarps][2 * kMaxHeadDim];
  const int warp = threadIdx.x / kWarp;
#pragma unroll
  for (int which = 0; which < 2; ++which)
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const int i = (lane + s * deal.lanes) * kStep;
        float(&values)[kStep] = sums[which][half][s];
        for (int offset = deal.lanes; offset < kWarp; offset *= 2) {
#pragma unroll
          for (int j = 0; j < kStep; ++j) values[j] += __shfl_xor_sync(kWholeWarp, values[j], offset);
        }
        if (threadIdx.x % kWarp >= deal.lanes || i >= deal.D / 2) continue;
#pragma unroll
        for (int j = 0; j < kStep; ++j)
          of_warps[warp][which * deal.D + (half == 0 ? deal.low(i) : deal.high(i)) + j] = values[j];
      }
  __syncthreads();  // a thread reads what every warp has written
  for (int d = threadIdx.x; d < 2 * deal.D; d += kBackwardThreads) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += of_warps[w][d];
    partial[d] = sum;
  }
}

// The backward with QK norm. With g the gradient before the rotation, u = g (offset + weight) and
// h = x rstd:
//   dx = rstd (u - h mean(u h)),  dweight += g h
// A block leaves its part of both weights' gradients in partials[block][2][D].
template <class T, int kStep, int kSteps>
__global__ __launch_bounds__(kBackwardThreads) void qk_norm_backward_kernel(
    View<const T> dy, View<T> dx, const float2* angles, View<const T> x, const T* q_weight, const T* k_weight,
    float offset, const float* rstds, float* partials, Deal deal) {
  const int lane = threadIdx.x & (deal.lanes - 1), pairs = deal.D / 2;
  const uint32_t groups_of_block = kBackwardThreads / deal.lanes;
  const float inverse_of_D = 1.0f / static_cast<float>(deal.D);
  Part<T, kStep, kSteps> weight[2];
  weight[0].load(q_weight, lane, deal), weight[1].load(k_weight, lane, deal);
  float dweight[2][2][kSteps][kStep] = {};

  // One group's heads, from loads to stores
  for (uint32_t begin = blockIdx.x * groups_of_block; begin < deal.total;
       begin += gridDim.x * groups_of_block) {
    const uint32_t group = begin + threadIdx.x / deal.lanes;
    const bool exists = group < deal.total;
    const uint32_t n = group / deal.groups, first_head = group - n * deal.groups;
    const auto head_of = [&](int k) { return static_cast<int>(first_head) + k * deal.groups; };
    const auto mine = [&](int k) { return exists && head_of(k) < deal.heads; };

    Part<T, kStep, kSteps> d[kBackwardHeads], held[kBackwardHeads];
    Angles<kStep, kSteps> angle = {};
    float rstd[kBackwardHeads] = {}, mean_uh[kBackwardHeads] = {};
#pragma unroll
    for (int k = 0; k < kBackwardHeads; ++k) {
      if (!mine(k)) continue;
      d[k].load(dy.row_begin(n) + head_of(k) * dy.head, lane, deal);
      held[k].load(x.row_begin(n) + head_of(k) * x.head, lane, deal);
      rstd[k] = rstds[static_cast<int64_t>(n) * deal.heads + head_of(k)];
    }
    if (exists) angle.load(angles + deal.position(n) * deal.rotated, lane, deal);

    float u[kBackwardHeads][2][kSteps][kStep], h[kBackwardHeads][2][kSteps][kStep];
#pragma unroll
    for (int k = 0; k < kBackwardHeads; ++k) {
      const bool is_query = head_of(k) < deal.query_heads;
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        float d_low[kStep], d_high[kStep], w[2][kStep];
        d[k].low[s].to_floats(d_low), d[k].high[s].to_floats(d_high);
        held[k].low[s].to_floats(h[k][0][s]), held[k].high[s].to_floats(h[k][1][s]);
        either(is_query, weight[0].low[s], weight[1].low[s]).to_floats(w[0]);
        either(is_query, weight[0].high[s], weight[1].high[s]).to_floats(w[1]);
#pragma unroll
        for (int j = 0; j < kStep; ++j) {
          const float cos = angle.cos[s][j], sin = angle.sin[s][j];
          const float g[2] = {d_low[j] * cos + d_high[j] * sin, d_high[j] * cos - d_low[j] * sin};
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            h[k][half][s][j] *= rstd[k];
            u[k][half][s][j] = g[half] * (offset + w[half][j]);
            mean_uh[k] += u[k][half][s][j] * h[k][half][s][j];
            const float of_weight = g[half] * h[k][half][s][j];
            is_query ? dweight[0][half][s][j] += of_weight : dweight[1][half][s][j] += of_weight;
          }
        }
      }
    }
    group_sum(mean_uh, deal.lanes);

#pragma unroll
    for (int k = 0; k < kBackwardHeads; ++k) {
      if (!mine(k)) continue;
      T* to = dx.row_begin(n) + head_of(k) * dx.head;
      mean_uh[k] *= inverse_of_D;
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const int i = (lane + s * deal.lanes) * kStep;
        if (i >= pairs) continue;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int j = 0; j < kStep; ++j)
            u[k][half][s][j] = rstd[k] * (u[k][half][s][j] - h[k][half][s][j] * mean_uh[k]);
          store_step(to + (half == 0 ? deal.low(i) : deal.high(i)), u[k][half][s]);
        }
      }
    }
  }
  store_weight_gradients(dweight, lane, deal, partials + static_cast<int64_t>(blockIdx.x) * 2 * deal.D);
}

// f<T, kStep, kSteps>(deal) for heads like those of `like`, in packs where `tensors` allow it.
template <class F>
void with_deal(const char* op, const Heads& like, int64_t query_heads, int64_t values, const Tensor& angles,
               const Tensor& positions, const Tensor& starts, int heads_at_once,
               std::initializer_list<Tensor> tensors, F&& f) {
  const Tensor& t = like.tensor;
  const int64_t N = t.shape[0] * t.shape[1], D = t.shape[3], pairs = D / 2;
  check(D <= kMaxHeadDim, "{}: supports head dims up to {}, found {}", op, kMaxHeadDim, D);
  const int64_t groups = cuda::divide_up(like.count + values, heads_at_once);
  check(N * groups <= INT32_MAX / kWarp, "{}: supports up to {} tokens of {} heads, found {}", op,
        INT32_MAX / kWarp / groups, like.count, t.to_string());
  bool aligned = reinterpret_cast<uintptr_t>(angles.data) % 16 == 0;
  for (const Tensor& each : tensors) aligned = aligned && reinterpret_cast<uintptr_t>(each.data) % 16 == 0;
  Deal deal{.total = static_cast<uint32_t>(N * groups),
            .groups = static_cast<int>(groups),
            .lanes = 0,
            .T = static_cast<int>(t.shape[1]),
            .heads = static_cast<int>(like.count),
            .query_heads = static_cast<int>(query_heads),
            .D = static_cast<int>(D),
            .rotated = static_cast<int>(angles.shape[1]),
            .positions = positions.as<int32_t>(),
            .starts = starts.as<int32_t>()};
  with_real_type(t.dtype, [&]<class T>() {
    const auto lanes_for = [&](int64_t steps) {
      return static_cast<int>(std::min<uint64_t>(kWarp, std::bit_ceil(static_cast<uint64_t>(steps))));
    };
    if (aligned && pairs % kPackWidth<T> == 0 && angles.shape[1] % kPackWidth<T> == 0) {
      deal.lanes = lanes_for(pairs / kPackWidth<T>);
      f.template operator()<T, kPackWidth<T>, 1>(deal);
    } else {
      deal.lanes = lanes_for(pairs);
      f.template operator()<T, 1, kMaxSteps>(deal);
    }
  });
}

int64_t blocks_for(const Deal& deal, int threads) {
  return cuda::divide_up(static_cast<int64_t>(deal.total) * deal.lanes, threads);
}

}  // namespace

void CudaBackend::run_op(const RotaryForward& a, const Launch& on) { rotate(a, nullptr, on); }
void CudaBackend::run_op(const RotaryAppend& a, const Launch& on) {
  rotate(a.rotary, &a.append, on);
  complete_means(a.append, on);
}

void CudaBackend::rotate(const RotaryForward& a, const CacheAppend* append, const Launch& on) {
  const CacheAppend none{}, &cache = append ? *append : none;
  with_deal(a.kName, a.x, a.query_heads, cache.v.count, a.angles, a.positions, a.starts, kForwardHeads,
            {a.x.tensor, a.y.tensor, a.q_weight, a.k_weight, cache.v.tensor, cache.k_cache, cache.v_cache},
            [&]<class T, int kStep, int kSteps>(const Deal& deal) {
              const auto run = [&]<bool kNorm, bool kCache>() {
                ToCache<T> to_cache;
                if (append)
                  to_cache = {.v = heads_of<const T>(cache.v),
                              .k_cache = cache.k_cache.as<T>(),
                              .v_cache = cache.v_cache.as<T>(),
                              .capacity = cache.k_cache.shape[1],
                              .kv_heads = static_cast<int>(cache.v.count),
                              .ring = cache.ring};
                cuda::launch(rotary_kernel<T, kStep, kSteps, kNorm, kCache>,
                             {.blocks = blocks_for(deal, kForwardThreads),
                              .threads = kForwardThreads,
                              .overlap = overlaps()},
                             on.stream, heads_of<const T>(a.x), heads_of<T>(a.y), a.angles.as<float2>(), 1.0f,
                             a.q_weight.as<T>(), a.k_weight.as<T>(), a.epsilon, a.offset, a.rstd.as<float>(),
                             to_cache, deal);
              };
              if (append)
                a.q_weight ? run.template operator()<true, true>() : run.template operator()<false, true>();
              else
                a.q_weight ? run.template operator()<true, false>() : run.template operator()<false, false>();
            });
}

void CudaBackend::run_op(const RotaryBackward& a, const Launch& on) {
  const char* op = a.kName;
  if (!a.q_weight) {
    with_deal(op, a.dy, a.query_heads, 0, a.angles, a.positions, {}, kForwardHeads,
              {a.dy.tensor, a.dx.tensor}, [&]<class T, int kStep, int kSteps>(const Deal& deal) {
                rotary_kernel<T, kStep, kSteps, false, false>
                    <<<blocks_for(deal, kForwardThreads), kForwardThreads, 0, on.stream>>>(
                        heads_of<const T>(a.dy), heads_of<T>(a.dx), a.angles.as<float2>(), -1.0f, nullptr,
                        nullptr, 0.0f, 0.0f, nullptr, ToCache<T>{}, deal);
                TESSERA_CUDA_LAUNCHED();
              });
    return;
  }
  with_deal(
      op, a.dy, a.query_heads, 0, a.angles, a.positions, {}, kBackwardHeads,
      {a.dy.tensor, a.dx.tensor, a.x.tensor, a.q_weight, a.k_weight},
      [&]<class T, int kStep, int kSteps>(const Deal& deal) {
        const auto kernel = qk_norm_backward_kernel<T, kStep, kSteps>;
        int resident = 0;
        TESSERA_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, kBackwardThreads, 0));
        const int64_t blocks = std::min(
            {int64_t{resident} * multiprocessors_, cuda::kMaxSlabs, blocks_for(deal, kBackwardThreads)});
        auto* partials =
            reinterpret_cast<float*>(on.scratch(op, cuda::column_partials_bytes(blocks, 2 * deal.D)));
        kernel<<<blocks, kBackwardThreads, 0, on.stream>>>(
            heads_of<const T>(a.dy), heads_of<T>(a.dx), a.angles.as<float2>(), heads_of<const T>(a.x),
            a.q_weight.as<T>(), a.k_weight.as<T>(), a.offset, a.rstd.as<float>(), partials, deal);
        TESSERA_CUDA_LAUNCHED();
        cuda::add_slabs(partials, blocks, {a.dq_weight, a.dk_weight}, a.accumulate, on.stream);
      });
}

}  // namespace tessera
