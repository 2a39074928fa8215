// Keys and values as codes (kernels/attention/small_cache.h), and back. A block takes a group of one head:
//
//   quantise_cache_kernel    a thread a channel: least and most of 64 tokens -> z and s of keys
//                            a warp a token and part: the same over channels -> z and s of values
//                            a thread a word of codes
//   dequantise_cache_kernel  a thread an element: z + s n
//
// The bits are those of the CPU (kernels/cpu/small_cache.cpp): both call the functions of CacheFormat.
#include "kernels/attention/small_cache.h"
#include "kernels/base/ptx.cuh"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"

namespace tessera {
namespace {

constexpr int kThreads = 256, kTokens = CacheFormat::kGroupTokens;
constexpr int kMostChannels = 256, kMostParts = 4;

struct Spread {
  float least = INFINITY, most = -INFINITY;
  bool finite = true;

  __device__ __forceinline__ void add(float x) {
    least = fminf(least, x), most = fmaxf(most, x);
    finite = finite && cache_format::is_finite(x);
  }
};

// A group's keys or values of one head: token t of the group at `first` + t, modulo the rows of the tensor
template <class T>
struct Rows {
  const T* data;
  int64_t first, rows, row;

  __device__ __forceinline__ float at(int token, int channel) const {
    return static_cast<float>(__ldcg(data + (first + token) % rows * row + channel));
  }
};

struct Scales {
  CacheScale of_channels[kMostChannels], of_tokens[kTokens * kMostParts];
};

template <class T>
__device__ void find_scales(const CacheFormat& format, const Rows<T>& k, const Rows<T>& v, Scales& scales) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, parts = format.parts();
  if (thread < format.head_dim) {
    Spread spread;
#pragma unroll 8
    for (int token = 0; token < kTokens; ++token) spread.add(k.at(token, thread));
    scales.of_channels[thread] = format.scale_of(spread.least, spread.most, spread.finite);
  }
  for (int i = thread / 32; i < kTokens * parts; i += kThreads / 32) {
    const int token = i / parts, begin = i % parts * format.value_channels(),
              end = min(begin + format.value_channels(), format.head_dim);
    Spread spread;
    for (int channel = begin + lane; channel < end; channel += 32) spread.add(v.at(token, channel));
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      spread.least = fminf(spread.least, __shfl_xor_sync(kWholeWarp, spread.least, step));
      spread.most = fmaxf(spread.most, __shfl_xor_sync(kWholeWarp, spread.most, step));
    }
    spread.finite = !__any_sync(kWholeWarp, !spread.finite);
    if (lane == 0) scales.of_tokens[i] = format.scale_of(spread.least, spread.most, spread.finite);
  }
}

__device__ void store_scales(const CacheFormat& format, const Scales& scales, uint32_t* group) {
  const int thread = static_cast<int>(threadIdx.x), parts = format.parts();
  auto* of_keys = reinterpret_cast<uint16_t*>(group);
  if (thread < format.steps() * 16) {
    const CacheScale scale = thread < format.head_dim ? scales.of_channels[thread] : CacheScale{};
    of_keys[CacheFormat::key_step(thread)] = scale.step;
    of_keys[CacheFormat::key_step(thread) + CacheFormat::kKeyZero] = scale.zero;
  }
  for (int i = thread; i < kTokens * parts; i += kThreads) {
    const CacheScale scale = scales.of_tokens[i];
    group[format.value_scale(i / parts, i % parts)] = uint32_t{scale.zero} << 16 | scale.step;
  }
}

template <class T>
__device__ void store_codes(const CacheFormat& format, const Rows<T>& k, const Rows<T>& v,
                            const Scales& scales, uint32_t* group) {
  const int of_part = format.code_words(), of_tile = 2 * of_part;
  constexpr int kStepWords = CacheFormat::kLanes * CacheFormat::kLaneWords;
  for (int i = static_cast<int>(threadIdx.x); i < format.tiles() * of_tile; i += kThreads) {
    const int tile = i / of_tile, in_tile = i % of_tile, in_part = in_tile % of_part;
    const bool is_value = in_tile >= of_part;
    const int step = in_part / kStepWords, in_step = in_part % kStepWords;
    uint32_t word = 0;
    for (int code = 0; code < format.codes_of_word(); ++code) {
      const CodeOf of = format.code_of(in_step, code);
      const int token = tile * format.tile_tokens() + of.sub * 16 + (is_value ? of.column : of.row),
                channel = step * 16 + (is_value ? of.row : of.column);
      uint32_t one = format.code_of_zero();
      if (channel < format.head_dim)
        one = is_value
                  ? format.code(v.at(token, channel),
                                scales.of_tokens[token * format.parts() + channel / format.value_channels()])
                  : format.code(k.at(token, channel), scales.of_channels[channel]);
      word |= one << code * format.bits();
    }
    group[format.tile_begin(tile) + format.value_scale_words() + in_tile] = word;
  }
}

// k, v [L B, rows, K, D] -> groups [L B, K, G, words]; a block a head and, in y, a group
template <class T>
__global__ __launch_bounds__(kThreads) void quantise_cache_kernel(CacheFormat format, const T* k, const T* v,
                                                                  uint32_t* groups, int64_t rows, int64_t G,
                                                                  int64_t first, const int32_t* starts, int B,
                                                                  int K) {
  __shared__ Scales scales;
  const int64_t sequence = blockIdx.x / K, head = blockIdx.x % K;  // of L B, and of K
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  int64_t group = first + blockIdx.y;
  if (starts != nullptr) {
    const int64_t start = __ldcg(starts + sequence % B);
    group = CacheFormat::groups_of(start);
    if (start < 0 || CacheFormat::groups_of(start + 1) == group || group >= G) return;
  }
  const int64_t row = static_cast<int64_t>(K) * format.head_dim,
                begin = sequence * rows * row + head * format.head_dim;
  const Rows<T> of_k{k + begin, group * kTokens, rows, row}, of_v{v + begin, group * kTokens, rows, row};
  uint32_t* to = groups + ((sequence * K + head) * G + group) * format.group_words();
  find_scales(format, of_k, of_v, scales);
  __syncthreads();  // all scales are there
  store_scales(format, scales, to);
  store_codes(format, of_k, of_v, scales, to);
}

// groups [K, G, words] -> k, v [rows, K, D]; blocks [count, K]
template <class T>
__global__ __launch_bounds__(kThreads) void dequantise_cache_kernel(CacheFormat format,
                                                                    const uint32_t* groups, T* k, T* v,
                                                                    int64_t G) {
  using cache_format::widened;
  const int64_t group = blockIdx.x, head = blockIdx.y, K = gridDim.y;
  const int D = format.head_dim;
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  const uint32_t* from = groups + (head * G + group) * format.group_words();
  const auto* of_keys = reinterpret_cast<const uint16_t*>(from);
  const uint32_t mask = (1u << format.bits()) - 1;
  for (int i = static_cast<int>(threadIdx.x); i < kTokens * D; i += kThreads) {
    const int token = i / D, channel = i % D;
    const int64_t to = ((group * kTokens + token) * K + head) * D + channel;
    const CodePlace key = format.place_of_key(token, channel), value = format.place_of_value(token, channel);
    const uint16_t* scale = of_keys + CacheFormat::key_step(channel);
    const uint32_t of_token = from[format.value_scale(token, channel / format.value_channels())];
    k[to] = static_cast<T>(fmaf(widened(scale[0]), format.number(from[key.word] >> key.shift & mask),
                                widened(scale[CacheFormat::kKeyZero])));
    v[to] = static_cast<T>(fmaf(widened(static_cast<uint16_t>(of_token)),
                                format.number(from[value.word] >> value.shift & mask),
                                widened(static_cast<uint16_t>(of_token >> 16))));
  }
}

}  // namespace

void CudaBackend::run_op(const QuantiseCache& a, const Launch& on) {
  const int64_t L = a.k.shape[0], B = a.k.shape[1], rows = a.k.shape[2], K = a.k.shape[3];
  const int64_t count = a.starts ? 1 : a.count;
  if (count == 0) return;
  with_real_type(a.k.dtype, [&]<class T>() {
    cuda::launch(quantise_cache_kernel<T>,
                 {.blocks = L * B * K, .rows = count, .threads = kThreads, .overlap = overlaps()}, on.stream,
                 a.format, a.k.as<T>(), a.v.as<T>(), a.groups.as<uint32_t>(), rows, a.groups.shape[3],
                 a.first, a.starts ? a.starts.as<int32_t>() : nullptr, static_cast<int>(B),
                 static_cast<int>(K));
  });
}

void CudaBackend::run_op(const DequantiseCache& a, const Launch& on) {
  if (a.count == 0) return;
  with_real_type(a.k.dtype, [&]<class T>() {
    cuda::launch(dequantise_cache_kernel<T>,
                 {.blocks = a.count, .rows = a.k.shape[1], .threads = kThreads, .overlap = overlaps()},
                 on.stream, a.format, a.groups.as<uint32_t>(), a.k.as<T>(), a.v.as<T>(), a.groups.shape[1]);
  });
}

}  // namespace tessera
