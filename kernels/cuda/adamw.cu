// AdamW: one pass over parameters, gradients and moments, in one launch for many tensors. The step is
// computed on the fp32 master, which is a bf16 parameter and its master's lower bits (kernels/base/master.h).
// So a bf16 parameter is 26 bytes of traffic, with bf16 moments 18.
#include <cmath>

#include "kernels/base/bf16.h"
#include "kernels/base/master.h"
#include "kernels/base/random.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/norm_of_parts.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/workspace.h"

namespace tessera {
namespace {

constexpr int kThreads = 256;
constexpr int kElements = 4;  // of a thread: one access of 16 bytes to an fp32 array, of 8 to one in bf16
constexpr int kSteps = 2;     // accesses to each array that a thread has under way

// The step's constants, computed on the host in double.
struct Update {
  float max_norm, keep, rate, second_moment_scale;  // 1 - lr decay; lr / (1 - beta1^t); 1 / sqrt(1 - beta2^t)
  float beta1, gain1, beta2, gain2, epsilon;
  float clip = 1;  // what the gradient is multiplied by: known on the device

  // `kept` is 1 - lr decay, or 1 where there is no decay. That product is rounded by itself: else the
  // compiler fuses it with the difference for some elements of a thread and not for others, and an element's
  // bits depend on its place in the tensor and on the types.
  __device__ float operator()(float p, float unclipped, float& m, float& v, float kept) const {
    const float g = unclipped * clip;
    m = beta1 * m + gain1 * g;
    v = beta2 * v + gain2 * g * g;
    return __fmul_rn(p, kept) - rate * m / (sqrtf(v) * second_moment_scale + epsilon);
  }
};

template <class T>
__device__ __forceinline__ void load_four(const T* from, float (&to)[kElements]) {
  if constexpr (sizeof(T) == 2) {
    const uint2 raw = *reinterpret_cast<const uint2*>(from);
    const uint32_t words[2] = {raw.x, raw.y};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      to[2 * i] = __uint_as_float(words[i] << 16);
      to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  } else {
    load_floats(from, to);
  }
}

// What the step is computed on: fp32 parameters, or the halves of masters
struct Floats {
  float* p;

  __device__ __forceinline__ void load(int64_t first, float (&to)[kElements]) const {
    load_floats(p + first, to);
  }
  __device__ __forceinline__ void store(int64_t first, const float (&from)[kElements]) const {
    store_floats(p + first, from);
  }
  __device__ __forceinline__ float load_one(int64_t i) const { return p[i]; }
  __device__ __forceinline__ void store_one(int64_t i, float value) const { p[i] = value; }
};
struct Halves {
  uint16_t *weight, *low;

  __device__ __forceinline__ void load(int64_t first, float (&to)[kElements]) const {
    const auto weights = *reinterpret_cast<const ushort4*>(weight + first),
               lows = *reinterpret_cast<const ushort4*>(low + first);
    to[0] = joined(weights.x, lows.x), to[1] = joined(weights.y, lows.y);
    to[2] = joined(weights.z, lows.z), to[3] = joined(weights.w, lows.w);
  }
  __device__ __forceinline__ void store(int64_t first, const float (&from)[kElements]) const {
    SplitMaster split[kElements];
#pragma unroll
    for (int i = 0; i < kElements; ++i) split[i] = split_master(__float_as_uint(from[i]));
    *reinterpret_cast<ushort4*>(weight + first) = {split[0].weight, split[1].weight, split[2].weight,
                                                   split[3].weight};
    *reinterpret_cast<ushort4*>(low + first) = {split[0].low, split[1].low, split[2].low, split[3].low};
  }
  __device__ __forceinline__ float load_one(int64_t i) const { return joined(weight[i], low[i]); }
  __device__ __forceinline__ void store_one(int64_t i, float value) const {
    const SplitMaster split = split_master(__float_as_uint(value));
    weight[i] = split.weight, low[i] = split.low;
  }

 private:
  static __device__ __forceinline__ float joined(uint16_t weight, uint16_t low) {
    return __uint_as_float(master_bits({weight, low}));
  }
};

template <class M>
__device__ __forceinline__ M moment_of(float value, uint32_t random) {
  if constexpr (sizeof(M) == 2) {
    return __ushort_as_bfloat16(bf16_at_random(__float_as_uint(value), random));
  } else {
    return value;
  }
}

// As the word of each element rounds it, moved right by `shift`.
template <class M>
__device__ __forceinline__ void store_moments(M* to, const float (&from)[kElements],
                                              const Philox::Words& random, int shift) {
  if constexpr (sizeof(M) == 2) {
    uint32_t halves[kElements];
#pragma unroll
    for (int i = 0; i < kElements; ++i)
      halves[i] = __bfloat16_as_ushort(moment_of<M>(from[i], random[i] >> shift));
    *reinterpret_cast<uint2*>(to) = {halves[0] | halves[1] << 16, halves[2] | halves[3] << 16};
  } else {
    store_floats(to, from);
  }
}

// Parts that one launch updates. A part's blocks follow those of the one before it.
constexpr int kMaxParts = 48;  // the arguments of a kernel have 4 KiB
struct Parts {
  struct One {
    void *param, *low;  // low: none if param is fp32
    const void* grad;
    void *m, *v;
    int64_t count, decayed, first_element;
    uint64_t random_key;
    uint32_t end_block;  // of the grid
  };
  One part[kMaxParts];
  int count = 0;
};

// The part of the calling block: the first that ends after it
__device__ __forceinline__ int part_of_block(const Parts& parts) {
  int low = 0, high = parts.count - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    parts.part[middle].end_block > blockIdx.x ? high = middle : low = middle + 1;
  }
  return low;
}

template <class T, class G, class M>
__global__ __launch_bounds__(kThreads) void adamw_kernel(const __grid_constant__ Parts parts,
                                                         const float* norms, int64_t norm_count,
                                                         const float* verdict, Update update, uint64_t step) {
  const float norm = cuda::norm_of_parts(norms, norm_count);
  if (!isfinite(norm) || (verdict && *verdict != static_cast<float>(StepVerdict::kUpdate))) return;
  update.clip = update.max_norm > 0 ? fminf(1.0f, update.max_norm / (norm + 1e-6f)) : 1.0f;
  const int at = part_of_block(parts);
  const Parts::One& part = parts.part[at];
  const uint32_t block = blockIdx.x - (at > 0 ? parts.part[at - 1].end_block : 0);
  const int64_t count = part.count;
  const auto p = [&] {
    if constexpr (sizeof(T) == 2)
      return Halves{static_cast<uint16_t*>(part.param), static_cast<uint16_t*>(part.low)};
    else
      return Floats{static_cast<float*>(part.param)};
  }();
  const G* grad = static_cast<const G*>(part.grad);
  M *m = static_cast<M*>(part.m), *v = static_cast<M*>(part.v);

  float p4[kSteps][kElements], g4[kSteps][kElements], m4[kSteps][kElements], v4[kSteps][kElements];
  const auto first_of = [&](int s) {
    return ((static_cast<int64_t>(block) * kSteps + s) * kThreads + threadIdx.x) * kElements;
  };
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const int64_t first = first_of(s);
    if (first + kElements > count) continue;
    p.load(first, p4[s]);
    load_four(m + first, m4[s]), load_four(v + first, v4[s]), load_four(grad + first, g4[s]);
  }
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const int64_t first = first_of(s);
    if (first >= count) return;
    const float keep = first < part.decayed ? update.keep : 1.0f;
    Philox::Words words{};
    if constexpr (sizeof(M) == 2)
      words =
          Philox(part.random_key, step).bits(static_cast<uint64_t>((part.first_element + first) / kElements));
    if (first + kElements <= count) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) p4[s][i] = update(p4[s][i], g4[s][i], m4[s][i], v4[s][i], keep);
      p.store(first, p4[s]);
      store_moments(m + first, m4[s], words, 0);
      store_moments(v + first, v4[s], words, 16);
      continue;
    }
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const int64_t one = first + i;
      if (one >= count) return;
      float m32 = static_cast<float>(m[one]), v32 = static_cast<float>(v[one]);
      p.store_one(one, update(p.load_one(one), static_cast<float>(grad[one]), m32, v32, keep));
      m[one] = moment_of<M>(m32, words[i]), v[one] = moment_of<M>(v32, words[i] >> 16);
    }
  }
}

}  // namespace

void CudaBackend::run_op(const AdamW& a, const Launch& on) {
  const double learning_rate = a.learning_rate, beta1 = a.beta1, beta2 = a.beta2;
  const auto step = static_cast<double>(a.step);
  const Update update{.max_norm = static_cast<float>(a.max_norm),
                      .keep = static_cast<float>(1 - learning_rate * a.weight_decay),
                      .rate = static_cast<float>(learning_rate / (1 - std::pow(beta1, step))),
                      .second_moment_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, step))),
                      .beta1 = static_cast<float>(beta1),
                      .gain1 = static_cast<float>(1 - beta1),
                      .beta2 = static_cast<float>(beta2),
                      .gain2 = static_cast<float>(1 - beta2),
                      .epsilon = static_cast<float>(a.epsilon)};
  Parts parts{};
  int64_t blocks = 0;
  const auto launch = [&] {
    if (blocks == 0) return;
    const AdamW::Part& like = a.parts.front();
    const auto run = [&]<class T, class G, class M>() {
      adamw_kernel<T, G, M><<<blocks, kThreads, 0, on.stream>>>(parts, a.grad_norm.as<float>(),
                                                                a.grad_norm.numel(), a.verdict.as<float>(),
                                                                update, static_cast<uint64_t>(a.step));
    };
    with_real_type(like.m.dtype, [&]<class M>() {
      if (like.param.dtype == DType::kF32) return run.template operator()<float, float, M>();
      with_real_type(like.grad.dtype, [&]<class G>() { run.template operator()<bf16, G, M>(); });
    });
    TESSERA_CUDA_LAUNCHED();
    parts.count = 0, blocks = 0;
  };
  for (const AdamW::Part& part : a.parts) {
    check_aligned(
        a.kName,
        {{"param", part.param}, {"low", part.low}, {"grad", part.grad}, {"m", part.m}, {"v", part.v}});
    const int64_t count = part.param.numel(), more = cuda::divide_up(count, kThreads * kElements * kSteps);
    if (count == 0) continue;
    if (parts.count == kMaxParts || blocks + more > INT32_MAX) launch();
    blocks += more;
    parts.part[parts.count++] = {.param = part.param.data,
                                 .low = part.low.data,
                                 .grad = part.grad.data,
                                 .m = part.m.data,
                                 .v = part.v.data,
                                 .count = count,
                                 .decayed = part.decayed,
                                 .first_element = part.first_element,
                                 .random_key = part.random_key,
                                 .end_block = static_cast<uint32_t>(blocks)};
  }
  launch();
}

}  // namespace tessera
