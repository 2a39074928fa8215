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
  int split;           // warps of a group
  int items, rounds;   // tiles, and how many of them a group takes at most
  int steps;           // of a warp in an item
  int x_stride;        // elements of a row of x in shared memory
  int warps_of_row;    // that load and norm a row of x
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

// Sums over the warps that share a row of x, in their order. `scratch` is not written again before the next
// barrier.
__device__ __forceinline__ float row_sum(float value, int warps_of_row, float (&scratch)[kWarps]) {
  const int warp = threadIdx.x / kWarp, first = warp - warp % warps_of_row;
  value = warp_sum(value);
  if (warps_of_row == 1) return value;
  if (threadIdx.x % kWarp == 0) scratch[warp] = value;
  __syncthreads();  // a warp reads the sums of others
  value = 0;
  for (int w = first; w < first + warps_of_row; ++w) value += scratch[w];
  return value;
}

template <class T>
struct NormPacks {  // of the calling thread's first pack of channels
  uint4 weight = {}, bias = {};
};

// x to shared memory, normed. A thread reads back only what it wrote.
template <class T, RowNorm kNorm>
__device__ __forceinline__ void load_rows(const Args<T>& a, T* rows, const NormPacks<T>& first) {
  constexpr int kWidth = kPackWidth<T>;
  __shared__ float scratch[2][kWarps];
  const int threads = a.warps_of_row * kWarp, row = threadIdx.x / threads, place = threadIdx.x % threads;
  const bool exists = row < a.N;
  T* to = rows + row * a.x_stride;
  float value[kWidth], sum = 0;
  for (int c = place * kWidth; exists && c < a.C; c += threads * kWidth) {
    const uint4 raw = __ldcg(reinterpret_cast<const uint4*>(a.x + static_cast<int64_t>(row) * a.C + c));
    store_pack(to + c, raw);
    if constexpr (kNorm != RowNorm::kNone) {
      unpack<T>(raw, value);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum += kNorm == RowNorm::kRmsNorm ? value[i] * value[i] : value[i];
    }
  }
  if constexpr (kNorm == RowNorm::kNone) return;
  const float inverse_of_C = 1.0f / static_cast<float>(a.C);
  float mean = 0, squares = row_sum(sum, a.warps_of_row, scratch[0]);
  if constexpr (kNorm == RowNorm::kLayerNorm) {
    mean = squares * inverse_of_C;
    sum = 0;
    for (int c = place * kWidth; exists && c < a.C; c += threads * kWidth) {
      load_floats(to + c, value);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum += (value[i] - mean) * (value[i] - mean);
    }
    squares = row_sum(sum, a.warps_of_row, scratch[1]);
  }
  const float rstd = rsqrtf(squares * inverse_of_C + a.epsilon);
  for (int c = place * kWidth; exists && c < a.C; c += threads * kWidth) {
    const bool is_first = c == place * kWidth;
    float weight[kWidth], bias[kWidth] = {};
    unpack<T>(is_first ? first.weight : load_pack(a.norm_weight + c), weight);
    if constexpr (kNorm == RowNorm::kLayerNorm)
      unpack<T>(is_first ? first.bias : load_pack(a.norm_bias + c), bias);
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
  const int of_group = warp % a.split, groups = gridDim.x * (kWarps / a.split);
  const int first_item = blockIdx.x * (kWarps / a.split) + warp / a.split;
  const int part = lane % kParts * kWidth, row = lane / kParts;
  const auto column = [&](int step) { return (of_group + step * a.split) * kStep<T> + part; };

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

  NormPacks<T> norm;
  if constexpr (kNorm != RowNorm::kNone) {
    const int c = threadIdx.x % (a.warps_of_row * kWarp) * kWidth;
    if (c < a.C) {
      norm.weight = load_pack(a.norm_weight + c);
      if constexpr (kNorm == RowNorm::kLayerNorm) norm.bias = load_pack(a.norm_bias + c);
    }
  }
  // What the epilogue reads, ahead of the products: an output a thread of a group, two where it is one warp
  const int members = a.split * kWarp, member = threadIdx.x % members;
  constexpr int kOutputs = kRows * kTileRows / kWarp;
  float bias[kOutputs][kTiles], add[kOutputs];
  const auto output = [&](int item, int e) { return item * kTileRows + (member + e * members) % kTileRows; };
  const auto row_of = [&](int e) { return (member + e * members) / kTileRows; };
  const auto mine = [&](int item, int e) { return item < a.items && row_of(e) < a.N && output(item, e) < a.O; };
  const auto fetch_bias = [&](int item) {
#pragma unroll
    for (int e = 0; e < kOutputs; ++e)
#pragma unroll
      for (int j = 0; j < kTiles; ++j)
        bias[e][j] = a.bias && mine(item, e) ? static_cast<float>(a.bias[output(item, e) + j * a.O]) : 0.0f;
  };
  const auto fetch_add = [&](int item) {
#pragma unroll
    for (int e = 0; e < kOutputs; ++e) {
      add[e] = 0;
      if (!a.add || !mine(item, e)) continue;
      add[e] = static_cast<float>(a.add[static_cast<int64_t>(row_of(e)) * a.O + output(item, e)]);
    }
  };
  fetch_bias(first_item);
  ptx::wait_for_grid_before();
  fetch_add(first_item);
  load_rows<T, kNorm>(a, rows, norm);
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
      if (!mine(item, e) || row_of(e) >= kRows) continue;
      float value[kTiles];
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        value[j] = bias[e][j];
        for (int w = 0; w < a.split; ++w)
          value[j] += own[warp / a.split * a.split + w][j][row_of(e)][(member + e * members) % kTileRows];
      }
      const float result = apply(a.epilogue, value[0], value[kTiles - 1]) + add[e];
      a.y[static_cast<int64_t>(row_of(e)) * a.O + output(item, e)] = static_cast<T>(result);
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
  // Where there are many items a warp takes one alone: fewer barriers
  const int most_blocks = kBlocksPerMultiprocessor * on.multiprocessors;
  const int split = items >= 4 * kWarps * most_blocks ? 2 : kWarps;
  const int64_t blocks = std::min<int64_t>(divide_up(int64_t{items} * split, kWarps), most_blocks);
  const int groups = static_cast<int>(blocks) * (kWarps / split);
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
                     .split = split,
                     .items = items,
                     .rounds = static_cast<int>(divide_up(items, groups)),
                     .steps = static_cast<int>(divide_up(divide_up(p.C, kStep<T>), split)),
                     .x_stride = static_cast<int>(x_stride_of(p.C, sizeof(T))),
                     .warps_of_row = kWarps / static_cast<int>(std::bit_ceil(N))};
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
