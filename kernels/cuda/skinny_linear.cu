// y[N, O] = epilogue(norm(x) W^T + bias) + add for N <= 8 rows: bound by the bytes of W, and, for small W, by
// how soon those bytes are asked for.
//
//   ask for the first bytes of this block's part of W       before the kernel before has ended: W is constant
//   wait for the kernel before; x -> norm -> shared memory
//   for each item of 8 rows of W (with SwiGLU 8 of gates and 8 of up):
//     the warps of a group share the item: warp w takes steps w, w + split, ... of 64 bytes of each row
//     each step: 16 bytes of W a lane (lane = 4 row + part)
//       bf16: two m16n8k16 products with x, whose rows 8 to 15 are zero; the order of k is that of the
//             16 bytes, the same for both operands
//       fp32: a lane's part of the dot products
//     sums of the group's warps, in their order; bias, activation, add; y
//
// Two kernels. Where all of W fits the registers of the GPU, it waits there for x: resident_kernel(). Else it
// streams through a ring in shared memory: streaming_kernel(). A thread copies there what it will read
// itself, so that the ring needs no barrier.
// Every sum has one order: the same bits each time, whatever the other rows of x are.
#include <cuda_pipeline.h>

#include <algorithm>
#include <bit>

#include "kernels/base/ptx.cuh"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/skinny_linear.h"
#include "kernels/workspace.h"

namespace tessera::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp, kLogWarps = 3;
constexpr int kRows = 8;                                  // of x, at most
constexpr int kTileRows = 8;                              // of W
constexpr int kParts = 4;                                 // lanes that share a row of a step, 16 bytes each
constexpr int kSlots = 12;                                // 16-byte loads that a thread has under way
constexpr int kRounds = 4;                                // items of a block of the resident kernel, at most
constexpr int kStreamingBlocks = 3, kResidentBlocks = 2;  // of a multiprocessor: registers for so many
constexpr int64_t kMaxRowBytes = int64_t{132} << 10;      // of x in shared memory

template <class T>
constexpr int kStep = kParts* kPackWidth<T>;  // elements of a row

template <class T>
struct Args {
  const T *x, *weight, *bias, *add, *norm_weight, *norm_bias;
  T* y;
  float epsilon, inverse_of_C;
  int N, C, O;
  Epilogue epilogue;
  int log_split;         // of the warps of a group
  int items, rounds;     // tiles, and how many of them a group takes at most
  int steps;             // of a warp in an item
  int x_stride;          // elements of a row of x in shared memory
  int log_warps_of_row;  // that load and norm a row of x
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

  __device__ __forceinline__ explicit RowShare(int log_warps)
      : row(threadIdx.x / kWarp >> log_warps),
        place(threadIdx.x & ((kWarp << log_warps) - 1)),
        threads(kWarp << log_warps) {}
};

// The norm's weight and bias for the first pack of a thread's channels, loaded before x is there
template <class T, RowNorm kNorm>
struct NormPacks {
  uint4 weight = {}, bias = {};

  __device__ __forceinline__ NormPacks(const Args<T>& a, const RowShare& share) {
    const int c = share.place * kPackWidth<T>;
    if (kNorm == RowNorm::kNone || c >= a.C) return;
    weight = load_pack(a.norm_weight + c);
    if (kNorm == RowNorm::kLayerNorm) bias = load_pack(a.norm_bias + c);
  }
};

// What a kernel before this one wrote, past L1, which may hold what was there before
template <class T>
__device__ __forceinline__ uint4 load_fresh_pack(const T* from) {
  return __ldcg(reinterpret_cast<const uint4*>(from));
}
template <class T>
__device__ __forceinline__ float load_fresh(const T* from) {
  return static_cast<float>(__ldcg(from));
}

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
                                          const NormPacks<T, kNorm>& first) {
  constexpr int kWidth = kPackWidth<T>, kBatch = 4;  // loads under way
  const bool exists = share.row < a.N;
  const T* from = a.x + static_cast<int64_t>(share.row) * a.C;
  T* to = rows + share.row * a.x_stride;
  const int begin = share.place * kWidth, stride = share.threads * kWidth;
  float value[kWidth], shift = 0;
  float2 sums = {};
  if (kNorm == RowNorm::kLayerNorm && exists) shift = load_fresh(from);
  for (int at = begin; exists && at < a.C; at += kBatch * stride) {
    uint4 raw[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b)
      if (at + b * stride < a.C) raw[b] = load_fresh_pack(from + at + b * stride);
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
  float variance = sums.y * a.inverse_of_C, mean = 0;
  if constexpr (kNorm == RowNorm::kLayerNorm) {
    const float difference = sums.x * a.inverse_of_C;
    mean = shift + difference;
    variance = fmaxf(variance - difference * difference, 0.0f);
  }
  const float rstd = rsqrtf(variance + a.epsilon);
  for (int c = begin; exists && c < a.C; c += stride) {
    float weight[kWidth], bias[kWidth] = {};
    unpack<T>(c == begin ? first.weight : load_pack(a.norm_weight + c), weight);
    if constexpr (kNorm == RowNorm::kLayerNorm)
      unpack<T>(c == begin ? first.bias : load_pack(a.norm_bias + c), bias);
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

// The sums of a tile over the warps of a group, and what follows; `partial` begins at the group's first warp.
template <class T, int kTiles>
__device__ __forceinline__ T output_of(const Args<T>& a, const float (*partial)[kTiles][kRows][kTileRows],
                                       int warps, int n, int of_tile, const float (&bias)[kTiles],
                                       float add) {
  float value[kTiles];
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    value[j] = bias[j];
#pragma unroll
    for (int w = 0; w < kWarps; ++w)
      if (w < warps) value[j] += partial[w][j][n][of_tile];
  }
  return static_cast<T>(apply(a.epilogue, value[0], value[kTiles - 1]) + add);
}

// A block has up to kRounds items, blockIdx.x, + gridDim.x, ..., with rounds x steps x kTiles <= kSlots loads
// a thread, all under way before the kernel before has ended. A thread has at most one output.
template <class T, RowNorm kNorm, int kTiles>
__global__ __launch_bounds__(kThreads, kResidentBlocks) void resident_kernel(const Args<T> a) {
  constexpr int kWidth = kPackWidth<T>, kUnits = kSlots / kTiles;
  extern __shared__ uint4 shared[];  // x [N][x_stride]
  __shared__ float partial[kRounds][kWarps][kTiles][kRows][kTileRows];
  T* rows = reinterpret_cast<T*>(shared);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int part = lane % kParts * kWidth, row = lane / kParts;
  const auto column = [&](int step) { return (warp + step * kWarps) * kStep<T> + part; };

  ptx::let_next_kernel_start();
  uint4 held[kUnits][kTiles] = {};
  Cursor at{static_cast<int>(blockIdx.x)};
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int c = column(at.step), o = at.item * kTileRows + row;
    if (at.item < a.items && c < a.C && o < a.O) {
#pragma unroll
      for (int j = 0; j < kTiles; ++j)
        held[u][j] =
            __ldg(reinterpret_cast<const uint4*>(a.weight + static_cast<int64_t>(o + j * a.O) * a.C + c));
    }
    at.advance(a.steps, gridDim.x);
  }
  const RowShare share(a.log_warps_of_row);
  const NormPacks<T, kNorm> norm(a, share);
  const int of_tile = threadIdx.x % kTileRows, n = threadIdx.x / kTileRows % kRows,
            my_round = threadIdx.x / (kTileRows * kRows);
  const int output = (blockIdx.x + my_round * gridDim.x) * kTileRows + of_tile;
  const bool mine = my_round < a.rounds && n < a.N && output < a.O;
  const int64_t place = static_cast<int64_t>(n) * a.O + output;
  float bias[kTiles] = {};
#pragma unroll
  for (int j = 0; j < kTiles; ++j)
    if (a.bias && mine) bias[j] = static_cast<float>(a.bias[output + j * a.O]);

  ptx::wait_for_previous_kernel();
  load_rows<T, kNorm>(a, rows, share, norm);
  const float add = a.add && mine ? load_fresh(a.add + place) : 0.0f;
  __syncthreads();  // every warp reads all of x

  uint4 x[kUnits] = {};  // all of them before the first product, or each product would wait for a load
#pragma unroll
  for (int u = 0, step = 0; u < kUnits; ++u) {
    const int c = column(step);
    if (row < a.N && c < a.C) x[u] = load_pack(rows + row * a.x_stride + c);
    if (++step == a.steps) step = 0;
  }
  Sums<T> sums[kTiles];
  int step = 0, round = 0;
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) sums[j].add(held[u][j], x[u], nullptr, 0, 0);
    if (++step < a.steps) continue;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      if (round < a.rounds) sums[j].store(partial[round][warp][j], a.N);
      sums[j] = {};
    }
    step = 0, ++round;
  }
  __syncthreads();  // an output is the sum of several warps
  if (mine) a.y[place] = output_of<T, kTiles>(a, partial[my_round], kWarps, n, of_tile, bias, add);
}

template <class T, RowNorm kNorm, int kTiles>
__global__ __launch_bounds__(kThreads, kStreamingBlocks) void streaming_kernel(const Args<T> a) {
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
  ptx::let_next_kernel_start();
  for (int slot = 0; slot < kDepth; ++slot) ask(slot);
  const RowShare share(a.log_warps_of_row);
  const NormPacks<T, kNorm> norm(a, share);

  // The outputs of a thread of a group: one, or two where the group is one warp. What their epilogue reads is
  // asked for ahead of the products.
  constexpr int kOutputs = kRows * kTileRows / kWarp;
  const int members = kWarp << a.log_split, member = threadIdx.x & (members - 1);
  const int of_tile = member % kTileRows;
  const auto row_of = [&](int e) { return (member + e * members) / kTileRows; };
  float bias[kTiles] = {}, add[kOutputs] = {};
  const auto mine = [&](int item, int e) {
    return item < a.items && row_of(e) < a.N && item * kTileRows + of_tile < a.O;
  };
  const auto place_of = [&](int item, int e) {
    return static_cast<int64_t>(row_of(e)) * a.O + item * kTileRows + of_tile;
  };
  const auto fetch = [&](int item) {
#pragma unroll
    for (int j = 0; j < kTiles; ++j)
      if (a.bias && mine(item, 0)) bias[j] = static_cast<float>(a.bias[item * kTileRows + of_tile + j * a.O]);
#pragma unroll
    for (int e = 0; e < kOutputs; ++e)
      if (a.add && mine(item, e)) add[e] = load_fresh(a.add + place_of(item, e));
  };
  ptx::wait_for_previous_kernel();
  load_rows<T, kNorm>(a, rows, share, norm);
  __syncthreads();  // every warp reads all of x

  int slot = 0;
  for (int round = 0, item = first_item; round < a.rounds; ++round, item += groups) {
    fetch(item);
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
    for (int e = 0; e < kOutputs; ++e)
      if (mine(item, e))
        a.y[place_of(item, e)] =
            output_of<T, kTiles>(a, own + first_warp, 1 << a.log_split, row_of(e), of_tile, bias, add[e]);
  }
}

int64_t x_stride_of(int64_t C, int64_t size) {  // rows 64 bytes apart in the banks: 8 lanes read two rows
  const int64_t bytes = divide_up(C * size, 128) * 128 + 64;
  return bytes / size;
}

// How W is dealt out
struct Deal {
  bool resident;
  int64_t blocks;
  int log_split, items, rounds, steps;
};

// Resident if W fits that kernel's registers, with equal shares for its blocks. Else streaming; where there
// are many items two warps share one: fewer barriers.
Deal deal_out(int64_t O, int64_t steps_of_row, int tiles, bool may_reside, int multiprocessors) {
  const int64_t items = divide_up(O, kTileRows), steps = divide_up(steps_of_row, kWarps);
  const int64_t rounds = divide_up(items, int64_t{kResidentBlocks} * multiprocessors);
  if (may_reside && rounds <= kRounds && rounds * steps * tiles <= kSlots)
    return {true,
            divide_up(items, rounds),
            kLogWarps,
            static_cast<int>(items),
            static_cast<int>(rounds),
            static_cast<int>(steps)};
  const int64_t most = int64_t{kStreamingBlocks} * multiprocessors;
  const int log_split = items >= 4 * most ? 1 : kLogWarps, groups_of_block = kWarps >> log_split;
  const int64_t blocks = std::min(divide_up(items, groups_of_block), most);
  return {false,
          blocks,
          log_split,
          static_cast<int>(items),
          static_cast<int>(divide_up(items, blocks * groups_of_block)),
          static_cast<int>(divide_up(steps_of_row, int64_t{1} << log_split))};
}

template <class T, RowNorm kNorm, int kTiles>
void launch_typed(const Args<T>& args, const Deal& deal, const SkinnyLaunch& on) {
  const int64_t rows = int64_t{args.N} * args.x_stride * static_cast<int64_t>(sizeof(T));
  const int64_t slots = std::min(kSlots / kTiles, deal.rounds * deal.steps) * kTiles;
  LaunchShape shape{.blocks = deal.blocks, .threads = kThreads, .shared_bytes = rows, .overlap = on.overlap};
  if constexpr (sizeof(T) == 2) {
    if (deal.resident) return launch(resident_kernel<T, kNorm, kTiles>, shape, on.stream, args);
  }
  shape.shared_bytes += slots * kThreads * static_cast<int64_t>(sizeof(uint4));
  launch(streaming_kernel<T, kNorm, kTiles>, shape, on.stream, args);
}

template <class T>
void run_typed(const SkinnyLinear& p, const SkinnyLaunch& on) {
  const int tiles = p.epilogue == Epilogue::kSwiglu ? 2 : 1;
  const Deal deal = deal_out(p.O, divide_up(p.C, kStep<T>), tiles, sizeof(T) == 2, on.multiprocessors);
  const auto N = static_cast<uint32_t>(p.N);
  const Args<T> args{.x = static_cast<const T*>(p.x),
                     .weight = static_cast<const T*>(p.weight),
                     .bias = static_cast<const T*>(p.bias),
                     .add = static_cast<const T*>(p.add),
                     .norm_weight = static_cast<const T*>(p.norm_weight),
                     .norm_bias = static_cast<const T*>(p.norm_bias),
                     .y = static_cast<T*>(p.y),
                     .epsilon = p.epsilon,
                     .inverse_of_C = 1.0f / static_cast<float>(p.C),
                     .N = static_cast<int>(N),
                     .C = static_cast<int>(p.C),
                     .O = static_cast<int>(p.O),
                     .epilogue = p.epilogue,
                     .log_split = deal.log_split,
                     .items = deal.items,
                     .rounds = deal.rounds,
                     .steps = deal.steps,
                     .x_stride = static_cast<int>(x_stride_of(p.C, sizeof(T))),
                     .log_warps_of_row = kLogWarps - std::countr_zero(std::bit_ceil(N))};
  const auto with_norm = [&]<RowNorm kNorm>() {
    tiles == 1 ? launch_typed<T, kNorm, 1>(args, deal, on) : launch_typed<T, kNorm, 2>(args, deal, on);
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
