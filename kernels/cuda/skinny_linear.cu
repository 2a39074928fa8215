// y[N, O] = epilogue(norm(x) W^T + bias) + add for N <= 8 rows: bound by the bytes of W, and, for small W, by
// how soon those bytes are asked for.
//
//   ask for the first 48 KiB of this block's part of W      before the kernel before has ended: W is constant
//   wait for the kernel before; x -> norm -> shared memory
//   for each item of 8 rows of W (with SwiGLU 8 of gates and 8 of up):
//     the warps of a group share the item: warp w takes steps w, w + split, ... of 64 bytes of each row
//     each step: 16 bytes of W a lane (lane = 4 row + part), from its own place in shared memory
//       bf16: two m16n8k16 products with x, whose rows 8 to 15 are zero; the order of k is that of the
//             16 bytes, the same for both operands
//       fp32: a lane's part of the dot products
//     sums of the group's warps, in their order; bias, activation, add; y
//
// A thread copies asynchronously what it will read itself, so that the ring of copies needs no barrier.
// Every sum has one order: the same bits each time, whatever the other rows of x are.
#include "kernels/cuda/skinny_linear.h"

#include <cuda_pipeline.h>

#include <algorithm>
#include <bit>

#include "kernels/attention/common/ptx.cuh"
#include "kernels/cuda/activations.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/workspace.h"

namespace tessera::cuda {
namespace {

namespace ptx = attention::ptx;

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kRows = 8;       // of x, at most
constexpr int kTileRows = 8;   // of W
constexpr int kParts = 4;      // lanes that share a row of a step, 16 bytes each
constexpr int kSlots = 12;     // 16-byte copies that a thread has under way
constexpr int kBlocksPerMultiprocessor = 2;
constexpr int64_t kMaxRowBytes = int64_t{132} << 10;  // of x in shared memory

template <class T>
constexpr int kStep = kParts * kPackWidth<T>;  // elements of a row

template <class T>
struct Args {
  const T *x, *weight, *bias, *add, *norm_weight, *norm_bias;
  T* y;
  float epsilon;
  int N, C, O;
  Epilogue epilogue;
  int log_split;         // of the warps of a group
  int items, rounds;     // tiles, and how many of them a group takes at most
  int steps;             // of a warp in an item
  int x_stride;          // elements of a row of x in shared memory
  int log_warps_of_row;  // that load and norm a row of x
  const char* ahead;     // every block asks for a share
  int64_t ahead_bytes;
  uint32_t ahead_share;
};

// A step of an item, as the copies and the products walk over them
struct Cursor {
  int item, step = 0;
  __device__ __forceinline__ void advance(int steps, int groups) {
    if (++step < steps) return;
    step = 0;
    item += groups;
  }
};

// The channels of a row of x that the calling thread loads: packs `place`, place + threads, ...
struct RowShare {
  int row, place, threads;
};

// Sums of two values over the warps that share a row of x, in their order
__device__ __forceinline__ float2 row_sums(float2 value, int log_warps) {
  __shared__ float2 scratch[kWarps];
  const int warp = threadIdx.x / kWarp, first = warp >> log_warps << log_warps;
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value.x += __shfl_xor_sync(kWholeWarp, value.x, offset);
    value.y += __shfl_xor_sync(kWholeWarp, value.y, offset);
  }
  if (log_warps == 0) return value;
  if (threadIdx.x % kWarp == 0) scratch[warp] = value;
  __syncthreads();  // a warp reads the sums of others
  float2 sum = {};
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    const float2 other = scratch[w];
    if (w >> log_warps << log_warps == first) sum.x += other.x, sum.y += other.y;
  }
  return sum;
}

// x to shared memory, normed. A thread reads back only what it wrote. The variance of a row is that of its
// differences d from its first element: E d^2 - (E d)^2, where E d^2 is at most C + 1 times the variance, so
// that the difference keeps its digits.
template <class T, RowNorm kNorm>
__device__ __forceinline__ void load_rows(const Args<T>& a, T* rows, const RowShare& share,
                                          uint4 first_weight, uint4 first_bias) {
  constexpr int kWidth = kPackWidth<T>, kBatch = 4;  // loads under way
  const bool exists = share.row < a.N;
  const T* from = a.x + static_cast<int64_t>(share.row) * a.C;
  T* to = rows + share.row * a.x_stride;
  const int begin = share.place * kWidth, stride = share.threads * kWidth;
  float value[kWidth], shift = 0;
  float2 sums = {};
  if (kNorm == RowNorm::kLayerNorm && exists) shift = static_cast<float>(*from);
  for (int at = begin; exists && at < a.C; at += kBatch * stride) {
    uint4 raw[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b)
      if (at + b * stride < a.C) raw[b] = __ldcg(reinterpret_cast<const uint4*>(from + at + b * stride));
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (at + b * stride >= a.C) break;
      store_pack(to + at + b * stride, raw[b]);
      if constexpr (kNorm != RowNorm::kNone) {
        unpack<T>(raw[b], value);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          const float d = value[i] - shift;
          sums.x += d, sums.y += d * d;
        }
      }
    }
  }
  if constexpr (kNorm == RowNorm::kNone) return;
  sums = row_sums(sums, a.log_warps_of_row);
  const float inverse_of_C = 1.0f / static_cast<float>(a.C);
  float variance = sums.y * inverse_of_C, mean = 0;
  if constexpr (kNorm == RowNorm::kLayerNorm) {
    const float difference = sums.x * inverse_of_C;
    mean = shift + difference;
    variance = fmaxf(variance - difference * difference, 0.0f);
  }
  const float rstd = rsqrtf(variance + a.epsilon);
  for (int c = begin; exists && c < a.C; c += stride) {
    float weight[kWidth], bias[kWidth] = {};
    unpack<T>(c == begin ? first_weight : load_pack(a.norm_weight + c), weight);
    if constexpr (kNorm == RowNorm::kLayerNorm)
      unpack<T>(c == begin ? first_bias : load_pack(a.norm_bias + c), bias);
    load_floats(to + c, value);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) value[i] = (value[i] - mean) * rstd * weight[i] + bias[i];
    store_floats(to + c, value);
  }
}

// The sums of a tile of one warp: [n][row of W]
template <class T>
struct Sums;
template <>
struct Sums<bf16> {
  float even[4] = {}, odd[4] = {};  // two chains of products

  __device__ __forceinline__ void add(const uint4& w, const uint4& x, const float*, int, int) {
    ptx::mma_m16n8k16(even, {x.x, 0, x.y, 0}, w.x, w.y);
    ptx::mma_m16n8k16(odd, {x.z, 0, x.w, 0}, w.z, w.w);
  }
  __device__ __forceinline__ void store(float (&to)[kRows][kTileRows], int /*N*/) {
    const int lane = threadIdx.x % kWarp, n = lane / 4, r = 2 * (lane % 4);
    to[n][r] = even[0] + odd[0], to[n][r + 1] = even[1] + odd[1];
  }
};
template <>
struct Sums<float> {
  float of_row[kRows] = {};

  // `at`: this lane's part of row 0 of x
  __device__ __forceinline__ void add(const uint4& w, const uint4&, const float* at, int stride, int N) {
    float weight[4], value[4];
    unpack<float>(w, weight);
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
      if (n >= N) break;
      load_floats(at + n * stride, value);
#pragma unroll
      for (int i = 0; i < 4; ++i) of_row[n] += weight[i] * value[i];
    }
  }
  __device__ __forceinline__ void store(float (&to)[kRows][kTileRows], int N) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
      if (n >= N) break;
      float sum = of_row[n];
      sum += __shfl_xor_sync(kWholeWarp, sum, 1);
      sum += __shfl_xor_sync(kWholeWarp, sum, 2);
      if (lane % kParts == 0) to[n][lane / kParts] = sum;
    }
  }
};

__device__ __forceinline__ float apply(Epilogue epilogue, float value, float up) {
  switch (epilogue) {
    case Epilogue::kNone:
      return value;
    case Epilogue::kGelu:
      return TanhGelu::value(value);
    case Epilogue::kGeluExact:
      return ExactGelu::value(value);
    case Epilogue::kRelu:
      return Relu::value(value);
    case Epilogue::kSwiglu:
      return value * sigmoid(value) * up;
  }
  return value;
}

template <class T, RowNorm kNorm, int kTiles>
__global__ __launch_bounds__(kThreads, 3) void skinny_linear_kernel(const Args<T> a) {
  constexpr int kWidth = kPackWidth<T>, kDepth = kSlots / kTiles;
  extern __shared__ uint4 shared[];  // x [N][x_stride], then the ring [slot][tile][thread]
  __shared__ float partial[2][kWarps][kTiles][kRows][kTileRows];
  T* rows = reinterpret_cast<T*>(shared);
  uint4* ring = shared + a.N * a.x_stride / kWidth + threadIdx.x;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int group = warp >> a.log_split, first_warp = group << a.log_split;
  const int groups = gridDim.x * (kWarps >> a.log_split);
  const int first_item = blockIdx.x * (kWarps >> a.log_split) + group;
  const int part = lane % kParts * kWidth, row = lane / kParts;
  const auto column = [&](int step) { return (warp - first_warp + (step << a.log_split)) * kStep<T> + part; };

  Cursor copy{first_item};
  const auto ask = [&](int slot) {
    const int c = column(copy.step), o = copy.item * kTileRows + row;
    if (copy.item < a.items) {
      const bool valid = c < a.C && o < a.O;
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        const T* from = valid ? a.weight + static_cast<int64_t>(o + j * a.O) * a.C + c : a.weight;
        __pipeline_memcpy_async(ring + (slot * kTiles + j) * kThreads, from, 16, valid ? 0 : 16);
      }
      copy.advance(a.steps, groups);
    }
    __pipeline_commit();
  };
  ptx::launch_dependents();
#pragma unroll
  for (int slot = 0; slot < kDepth; ++slot) ask(slot);
  if (threadIdx.x == 0) {
    const int64_t at = static_cast<int64_t>(blockIdx.x) * a.ahead_share, left = a.ahead_bytes - at;
    if (left > 0) ptx::prefetch_to_l2(a.ahead + at, left < a.ahead_share ? left : a.ahead_share);
  }

  const int threads_of_row = kWarp << a.log_warps_of_row;
  const RowShare share{warp >> a.log_warps_of_row, static_cast<int>(threadIdx.x) & (threads_of_row - 1),
                       threads_of_row};
  uint4 norm_weight = {}, norm_bias = {};
  if (kNorm != RowNorm::kNone && share.place * kWidth < a.C) {
    norm_weight = load_pack(a.norm_weight + share.place * kWidth);
    if (kNorm == RowNorm::kLayerNorm) norm_bias = load_pack(a.norm_bias + share.place * kWidth);
  }
  // The outputs of a thread of a group: one, or two where the group is one warp. What their epilogue reads is
  // asked for ahead of the products.
  constexpr int kOutputs = kRows * kTileRows / kWarp;
  const int members = kWarp << a.log_split, member = threadIdx.x & (members - 1);
  const int of_tile = member % kTileRows, first_row = member / kTileRows, next_row = members / kTileRows;
  float bias[kTiles], add[kOutputs];
  const auto mine = [&](int item, int e) {
    return item < a.items && first_row + e * next_row < a.N && item * kTileRows + of_tile < a.O;
  };
  const auto place_of = [&](int item, int e) {
    return static_cast<int64_t>(first_row + e * next_row) * a.O + item * kTileRows + of_tile;
  };
  const auto fetch_bias = [&](int item) {
#pragma unroll
    for (int j = 0; j < kTiles; ++j)
      bias[j] = a.bias && mine(item, 0) ? static_cast<float>(a.bias[item * kTileRows + of_tile + j * a.O]) : 0;
  };
  const auto fetch_add = [&](int item) {
#pragma unroll
    for (int e = 0; e < kOutputs; ++e)
      add[e] = a.add && mine(item, e) ? static_cast<float>(a.add[place_of(item, e)]) : 0.0f;
  };
  fetch_bias(first_item);
  ptx::wait_for_grid_before();
  load_rows<T, kNorm>(a, rows, share, norm_weight, norm_bias);
  fetch_add(first_item);
  __syncthreads();  // every warp reads all of x

  int slot = 0;
  for (int round = 0, item = first_item; round < a.rounds; ++round, item += groups) {
    Sums<T> sums[kTiles];
    for (int step = 0; step < a.steps && item < a.items; ++step) {
      __pipeline_wait_prior(kDepth - 1);
      const int c = column(step);
      uint4 x = {};
      if (sizeof(T) == 2 && row < a.N && c < a.C) x = load_pack(rows + row * a.x_stride + c);
      if (sizeof(T) == 2 || c < a.C) {
#pragma unroll
        for (int j = 0; j < kTiles; ++j)
          sums[j].add(ring[(slot * kTiles + j) * kThreads], x, reinterpret_cast<const float*>(rows) + c,
                      a.x_stride, a.N);
      }
      ask(slot);
      if (++slot == kDepth) slot = 0;
    }
    auto& own = partial[round % 2];
#pragma unroll
    for (int j = 0; j < kTiles; ++j) sums[j].store(own[warp][j], a.N);
    __syncthreads();  // an output is the sum of several warps; the turn before last has been read
#pragma unroll
    for (int e = 0; e < kOutputs; ++e) {
      if (!mine(item, e)) continue;
      float value[kTiles];
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        value[j] = bias[j];
#pragma unroll
        for (int w = 0; w < kWarps; ++w)
          if (w < 1 << a.log_split) value[j] += own[first_warp + w][j][first_row + e * next_row][of_tile];
      }
      a.y[place_of(item, e)] = static_cast<T>(apply(a.epilogue, value[0], value[kTiles - 1]) + add[e]);
    }
    if (round + 1 < a.rounds) fetch_bias(item + groups), fetch_add(item + groups);
  }
}

int64_t x_stride_of(int64_t C, int64_t size) {  // rows 64 bytes apart in the banks: 8 lanes read two rows
  const int64_t bytes = divide_up(C * size, 128) * 128 + 64;
  return bytes / size;
}

template <class T>
void run_typed(const SkinnyLinear& p, const SkinnyLaunch& on) {
  const int tiles = p.epilogue == Epilogue::kSwiglu ? 2 : 1;
  const int items = static_cast<int>(divide_up(p.O, kTileRows));
  const auto N = static_cast<uint32_t>(p.N);
  // Where there are many items two warps share one: fewer barriers
  const int most_blocks = kBlocksPerMultiprocessor * on.multiprocessors;
  const int log_split = items >= 4 * most_blocks ? 1 : 3, split = 1 << log_split;
  const int64_t blocks = std::min<int64_t>(divide_up(int64_t{items} * split, kWarps), most_blocks);
  const int groups = static_cast<int>(blocks) * (kWarps / split);
  const int64_t ahead = p.ahead ? std::min(p.ahead_bytes, kAheadBytes) / 16 * 16 : 0;
  const Args<T> args{.x = static_cast<const T*>(p.x),
                     .weight = static_cast<const T*>(p.weight),
                     .bias = static_cast<const T*>(p.bias),
                     .add = static_cast<const T*>(p.add),
                     .norm_weight = static_cast<const T*>(p.norm_weight),
                     .norm_bias = static_cast<const T*>(p.norm_bias),
                     .y = static_cast<T*>(p.y),
                     .epsilon = p.epsilon,
                     .N = static_cast<int>(N),
                     .C = static_cast<int>(p.C),
                     .O = static_cast<int>(p.O),
                     .epilogue = p.epilogue,
                     .log_split = log_split,
                     .items = items,
                     .rounds = static_cast<int>(divide_up(items, groups)),
                     .steps = static_cast<int>(divide_up(divide_up(p.C, kStep<T>), split)),
                     .x_stride = static_cast<int>(x_stride_of(p.C, sizeof(T))),
                     .log_warps_of_row = std::countr_zero(static_cast<uint32_t>(kWarps)) -
                                         std::countr_zero(std::bit_ceil(N)),
                     .ahead = static_cast<const char*>(p.ahead),
                     .ahead_bytes = ahead,
                     .ahead_share = static_cast<uint32_t>(divide_up(divide_up(ahead, blocks), 128) * 128)};
  const int slots = std::min(kSlots / tiles, args.rounds * args.steps) * tiles;
  const int64_t shared = p.N * args.x_stride * sizeof(T) + int64_t{slots} * kThreads * 16;
  const LaunchShape shape{
      .blocks = blocks, .threads = kThreads, .shared_bytes = shared, .overlap = on.overlap};
  const auto with_norm = [&]<RowNorm kNorm>() {
    tiles == 1 ? launch(skinny_linear_kernel<T, kNorm, 1>, shape, on.stream, args)
               : launch(skinny_linear_kernel<T, kNorm, 2>, shape, on.stream, args);
  };
  switch (p.norm) {
    case RowNorm::kNone:
      return with_norm.template operator()<RowNorm::kNone>();
    case RowNorm::kLayerNorm:
      return with_norm.template operator()<RowNorm::kLayerNorm>();
    case RowNorm::kRmsNorm:
      return with_norm.template operator()<RowNorm::kRmsNorm>();
  }
}

}  // namespace

bool serves(const SkinnyLinear& a) {
  const auto size = static_cast<int64_t>(size_of(a.dtype));
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return a.N <= kRows && a.C * size % 16 == 0 && a.N * x_stride_of(a.C, size) * size <= kMaxRowBytes &&
         a.O <= INT32_MAX / 2 && aligned(a.x) && aligned(a.weight) && aligned(a.norm_weight) &&
         aligned(a.norm_bias);
}

void run(const SkinnyLinear& a, const SkinnyLaunch& on) {
  with_real_type(a.dtype, [&]<class T>() { run_typed<T>(a, on); });
}

}  // namespace tessera::cuda
