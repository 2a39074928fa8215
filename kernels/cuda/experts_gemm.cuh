// The products of a mixture of experts in a plain form, for all that kernels/gemm/sm90 does not compute.
// Gathered rows are not copied; the tile of a block is 64 x 64; bf16 goes through mma, fp32 through FMA, sums
// are fp32.
//
//   rows      y[r, :] = A[r, :] B[e]  for the rows r of every expert e. A block finds its expert and its tile
//             of rows from the offsets, on the device: the grid has room for every way to choose.
//   weights   D[e] (+)= sum over the rows r of expert e of A[r, :]^T B[r, :]
//   biases    b[e] (+)= sum over the rows r of expert e of A[r, :], a block for 32 columns of an expert: 8
//             rows at a time, then the sum of the 8 in their order
//   router    rows, weights and biases of a single expert that has all rows; weights in parts of the tokens,
//             which are added up in their order
//
//   for each step of 64 bytes of the summed dimension:
//     packs of 16 bytes of both operands -> registers, while the tile before is multiplied
//     registers -> shared memory, [64 rows or columns][step]: what lies along the other dimension is turned
//     multiply
// Every sum has one order: the same bits each time, whatever the other rows are.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/base/ptx.cuh"
#include "kernels/base/tensor.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"

namespace tessera::cuda::expert_gemm {

constexpr int kSide = 64, kThreads = 128, kStepBytes = 64, kPacks = 2;  // packs of a thread in a tile

template <class T>
constexpr int kStep = kStepBytes / sizeof(T);
template <class T>
constexpr int kStride = kStep<T> + kPackWidth<T>;  // of a row in shared memory, without bank conflicts

// A matrix in memory [rows, columns], of which tile rows may be gathered: row m is row_numbers[m] / active
template <class S>
struct Operand {
  const S* data;
  int64_t columns;
  const int32_t* row_numbers;
  int active;            // 0: rows are not gathered, and row numbers are of weights only
  const float* weights;  // of row numbers, which multiply rows; null: 1
  bool packed;           // rows begin at packs, and are whole packs

  __device__ int64_t row(int64_t m) const { return row_numbers && active > 0 ? row_numbers[m] / active : m; }
};

// Elements column .. of row m, as T; zeros behind the last column
template <class T, class S>
__device__ __forceinline__ void load(const Operand<S>& from, int64_t m, int64_t column,
                                     T (&to)[kPackWidth<T>]) {
  constexpr int kWidth = kPackWidth<T>;
  const S* at = from.data + from.row(m) * from.columns + column;
  const float weight = from.weights ? from.weights[from.row_numbers[m]] : 1.0f;
  if constexpr (std::is_same_v<T, S>) {
    if (from.packed && !from.weights) {
      *reinterpret_cast<uint4*>(to) = load_pack(at);
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    float value = column + i < from.columns ? static_cast<float>(at[i]) : 0.0f;
    if (from.weights) value *= weight;
    to[i] = static_cast<T>(value);
  }
}

// A pack of the operand's tile [kSide][kStep], whose side lies along memory rows (kAlongSum) or columns
template <class T>
struct Packs {
  alignas(16) T values[kPacks][kPackWidth<T>];
};
template <class T, bool kAlongSum>
__device__ __forceinline__ void place_of(int pack, int& side, int& term) {
  constexpr int kWidth = kPackWidth<T>;
  if constexpr (kAlongSum) {
    constexpr int kOfRow = kStep<T> / kWidth;
    side = pack / kOfRow, term = pack % kOfRow * kWidth;
  } else {
    constexpr int kOfTerm = kSide / kWidth;
    side = pack % kOfTerm * kWidth, term = pack / kOfTerm;
  }
}
// `begin`, `end`: of the side in memory; terms begin at `first_term`, of `terms`
template <class T, bool kAlongSum, class S>
__device__ __forceinline__ void load_tile(const Operand<S>& from, int64_t begin, int64_t end,
                                          int64_t first_term, int64_t offset, int64_t terms, int64_t step,
                                          Packs<T>& to) {
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    int side, term;
    place_of<T, kAlongSum>(threadIdx.x + p * kThreads, side, term);
    const bool is_there = begin + side < end && step + term < terms;
    if (is_there) {
      const int64_t of_side = begin + side, of_sum = first_term + step + term;
      kAlongSum ? load(from, offset + of_side, of_sum, to.values[p])
                : load(from, of_sum, of_side, to.values[p]);
    } else {
#pragma unroll
      for (int i = 0; i < kPackWidth<T>; ++i) to.values[p][i] = static_cast<T>(0.0f);
    }
  }
}
template <class T, bool kAlongSum>
__device__ __forceinline__ void store_tile(const Packs<T>& from, T* tile) {
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    int side, term;
    place_of<T, kAlongSum>(threadIdx.x + p * kThreads, side, term);
    if constexpr (kAlongSum) {
      *reinterpret_cast<uint4*>(tile + side * kStride<T> + term) =
          *reinterpret_cast<const uint4*>(from.values[p]);
    } else {
#pragma unroll
      for (int i = 0; i < kPackWidth<T>; ++i) tile[(side + i) * kStride<T> + term] = from.values[p][i];
    }
  }
}

// The sums of a thread, and where in the tile they are
template <class T>
struct Sums;
template <>
struct Sums<bf16> {  // 4 warps, each 32 x 32
  float d[2][4][4] = {};
  __device__ void multiply(const bf16* a, const bf16* b) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
    const auto pair = [](const bf16* tile, int side, int term) {
      return *reinterpret_cast<const uint32_t*>(tile + side * kStride<bf16> + term);
    };
#pragma unroll
    for (int k = 0; k < kStep<bf16>; k += 16) {
      uint32_t rows[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = warp / 2 * 32 + i * 16 + g, term = k + 2 * t;
        rows[i][0] = pair(a, row, term), rows[i][1] = pair(a, row + 8, term);
        rows[i][2] = pair(a, row, term + 8), rows[i][3] = pair(a, row + 8, term + 8);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int column = warp % 2 * 32 + j * 8 + g, term = k + 2 * t;
        const uint32_t b0 = pair(b, column, term), b1 = pair(b, column, term + 8);
#pragma unroll
        for (int i = 0; i < 2; ++i) ptx::mma_m16n8k16(d[i][j], rows[i], b0, b1);
      }
    }
  }
  template <class F>
  __device__ void each(const F& f) const {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int n = 0; n < 4; ++n)
          f(warp / 2 * 32 + i * 16 + g + n / 2 * 8, warp % 2 * 32 + j * 8 + 2 * t + n % 2, d[i][j][n]);
  }
};
template <>
struct Sums<float> {  // a thread 8 x 4
  float d[8][4] = {};
  __device__ void multiply(const float* a, const float* b) {
    const int row = threadIdx.x / 16 * 8, column = threadIdx.x % 16 * 4;
#pragma unroll
    for (int k = 0; k < kStep<float>; ++k) {
      float rows[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) rows[i] = a[(row + i) * kStride<float> + k];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float of_column = b[(column + j) * kStride<float> + k];
#pragma unroll
        for (int i = 0; i < 8; ++i) d[i][j] = fmaf(rows[i], of_column, d[i][j]);
      }
    }
  }
  template <class F>
  __device__ void each(const F& f) const {
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) f(threadIdx.x / 16 * 8 + i, threadIdx.x % 16 * 4 + j, d[i][j]);
  }
};

// The rows of expert e are offsets[e] to offsets[e + 1] - 1. No offsets: a single expert has all rows.
struct Experts {
  const int32_t* offsets = nullptr;  // [count + 1]
  int64_t count = 1;

  // The most tiles of `side` rows that so many rows make
  int64_t most_tiles(int64_t rows, int64_t side) const {
    return offsets ? rows / side + std::min(count, rows) : divide_up(rows, side);
  }
};
inline Experts experts_of(const Tensor& offsets) {
  return offsets ? Experts{offsets.as<int32_t>(), offsets.shape[0] - 1} : Experts{};
}

template <class SA, class SB, class D, class Bias = SB>
struct Args {
  Operand<SA> a;
  Operand<SB> b;
  D* d;
  const D* add = nullptr;                              // like d; may be d itself; null: nothing
  const Bias* bias = nullptr;                          // [width] of each expert; null: 0
  float scale = 1;                                     // of the sums of products of rows
  const float *a_scale = nullptr, *b_scale = nullptr;  // further ones, on the device: both or none
  int64_t height, width;                               // of an expert's result, or of all rows
  int64_t terms = 0;                                   // of a sum over columns, or over all rows
  int64_t matrix = 0;                                  // elements from an expert's b, or d, to the next
  Experts experts = {};
  int64_t part = 0;  // above 0, of weights of a single expert: block z has so many of the terms
};

// The expert and the tile of kRows rows of a block; no expert: there is no such tile
struct Found {
  int expert = -1;
  int64_t first = 0, rows = 0, row = 0;
};
template <int kRows>
__device__ __forceinline__ Found find_tile(const Experts& experts, int64_t all_rows, int64_t tile) {
  if (!experts.offsets) return {0, 0, all_rows, tile * kRows};
  const int32_t* const offsets = experts.offsets;
  const auto count_of_experts = static_cast<int>(experts.count);
  const int lane = threadIdx.x % kWarp;
  int64_t before = 0;
  for (int base = 0; base < count_of_experts; base += kWarp) {
    const int e = base + lane;
    const int first = e < count_of_experts ? offsets[e] : 0,
              count = e < count_of_experts ? offsets[e + 1] - first : 0;
    const int own = (count + kRows - 1) / kRows;
    int through = own;  // tiles of the warp's experts up to this one
#pragma unroll
    for (int by = 1; by < kWarp; by *= 2) {
      const int other = __shfl_up_sync(kWholeWarp, through, by);
      if (lane >= by) through += other;
    }
    const unsigned behind = __ballot_sync(kWholeWarp, before + through > tile);
    if (behind) {
      const int at = __ffs(static_cast<int>(behind)) - 1;
      const int begins = __shfl_sync(kWholeWarp, through - own, at);
      return {base + at, __shfl_sync(kWholeWarp, first, at), __shfl_sync(kWholeWarp, count, at),
              (tile - before - begins) * kRows};
    }
    before += __shfl_sync(kWholeWarp, through, kWarp - 1);
  }
  return {};
}

// B: [width, terms] of each expert, or with kTurned [terms, width]
template <class T, bool kTurned, class SA, class SB, class D, class Bias>
__global__ __launch_bounds__(kThreads) void rows_kernel(Args<SA, SB, D, Bias> args) {
  __shared__ __align__(16) T of_a[kSide * kStride<T>];
  __shared__ __align__(16) T of_b[kSide * kStride<T>];
  const Found at = find_tile<kSide>(args.experts, args.height, blockIdx.x);
  if (at.expert < 0) return;  // all threads of the block
  Operand<SB> b = args.b;
  b.data += at.expert * args.matrix;
  const int64_t column = static_cast<int64_t>(blockIdx.y) * kSide;
  Sums<T> sums;
  Packs<T> next_a, next_b;
  const auto load_step = [&](int64_t step) {
    load_tile<T, true>(args.a, at.row, at.rows, 0, at.first, args.terms, step, next_a);
    load_tile<T, !kTurned>(b, column, args.width, 0, 0, args.terms, step, next_b);
  };
  load_step(0);
  for (int64_t step = 0; step < args.terms; step += kStep<T>) {
    store_tile<T, true>(next_a, of_a);
    store_tile<T, !kTurned>(next_b, of_b);
    __syncthreads();
    if (step + kStep<T> < args.terms) load_step(step + kStep<T>);
    sums.multiply(of_a, of_b);
    __syncthreads();
  }
  const float scale = args.a_scale ? args.scale * *args.a_scale * *args.b_scale : args.scale;
  sums.each([&](int i, int j, float value) {
    if (at.row + i >= at.rows || column + j >= args.width) return;
    const int64_t to = (at.first + at.row + i) * args.width + column + j;
    value *= scale;
    if (args.add) value += static_cast<float>(args.add[to]);
    if (args.bias) value += static_cast<float>(args.bias[at.expert * args.width + column + j]);
    args.d[to] = static_cast<D>(value);
  });
}

// The sum over an expert's rows of A^T B
template <class T, class SA, class SB, class D>
__global__ __launch_bounds__(kThreads) void weights_kernel(Args<SA, SB, D> args) {
  __shared__ __align__(16) T of_a[kSide * kStride<T>];
  __shared__ __align__(16) T of_b[kSide * kStride<T>];
  const int expert = blockIdx.z;
  const int32_t* const offsets = args.experts.offsets;
  const int64_t first = offsets ? offsets[expert] : expert * args.part,
                terms = offsets         ? offsets[expert + 1] - first
                        : args.part > 0 ? min(args.part, args.terms - first)
                                        : args.terms,
                row = static_cast<int64_t>(blockIdx.y) * kSide,
                column = static_cast<int64_t>(blockIdx.x) * kSide;
  Sums<T> sums;
  Packs<T> next_a, next_b;
  const auto load_step = [&](int64_t step) {
    load_tile<T, false>(args.a, row, args.height, first, 0, terms, step, next_a);
    load_tile<T, false>(args.b, column, args.width, first, 0, terms, step, next_b);
  };
  if (terms > 0) load_step(0);
  for (int64_t step = 0; step < terms; step += kStep<T>) {
    store_tile<T, false>(next_a, of_a);
    store_tile<T, false>(next_b, of_b);
    __syncthreads();
    if (step + kStep<T> < terms) load_step(step + kStep<T>);
    sums.multiply(of_a, of_b);
    __syncthreads();
  }
  if (terms == 0 && args.add) return;
  sums.each([&](int i, int j, float value) {
    if (row + i >= args.height || column + j >= args.width) return;
    const int64_t to = expert * args.matrix + (row + i) * args.width + column + j;
    if (args.add) value += static_cast<float>(args.add[to]);
    args.d[to] = static_cast<D>(value);
  });
}

constexpr int kBiasRows = 8;  // of a block at a time
template <class S, class D>
struct BiasArgs {
  Operand<S> dy;
  D* d;
  int64_t rows;            // of a single expert
  const int32_t* offsets;  // null: a single expert with all rows
  bool accumulate;
};
template <class S, class D>
__global__ __launch_bounds__(kWarp* kBiasRows) void biases_kernel(BiasArgs<S, D> args) {
  __shared__ float sums[kBiasRows][kWarp];
  const int lane = threadIdx.x % kWarp, own = threadIdx.x / kWarp;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + lane, columns = args.dy.columns;
  const int64_t first = args.offsets ? args.offsets[blockIdx.y] : 0,
                last = args.offsets ? args.offsets[blockIdx.y + 1] : args.rows;
  float sum = 0;
  for (int64_t r = first + own; r < last && column < columns; r += kBiasRows) {
    const float weight = args.dy.weights ? args.dy.weights[args.dy.row_numbers[r]] : 1.0f;
    sum += weight * static_cast<float>(args.dy.data[args.dy.row(r) * columns + column]);
  }
  sums[own][lane] = sum;
  __syncthreads();
  if (own > 0 || column >= columns) return;
  for (int i = 1; i < kBiasRows; ++i) sum += sums[i][lane];
  D& to = args.d[blockIdx.y * columns + column];
  to = static_cast<D>(args.accumulate ? static_cast<float>(to) + sum : sum);
}

// Whether rows begin at packs, and are whole packs
template <class S>
bool has_packs(const Tensor& matrix) {
  return matrix.shape[-1] % kPackWidth<S> == 0 && reinterpret_cast<uintptr_t>(matrix.data) % 16 == 0;
}

template <class S>
Operand<S> operand(const Tensor& matrix, const Tensor& row_numbers = {}, int64_t active = 1,
                   const Tensor& weights = {}) {
  return {.data = matrix.as<S>(),
          .columns = matrix.shape[-1],
          .row_numbers = row_numbers.as<int32_t>(),
          .active = static_cast<int>(active),
          .weights = weights.as<float>(),
          .packed = has_packs<S>(matrix)};
}

inline unsigned tiles(int64_t count) { return static_cast<unsigned>(divide_up(count, kSide)); }

template <class T, bool kTurned, class SA, class SB, class D, class Bias>
void launch_rows(const Args<SA, SB, D, Bias>& args, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(args.experts.most_tiles(args.height, kSide)), tiles(args.width));
  rows_kernel<T, kTurned><<<grid, kThreads, 0, stream>>>(args);
  TESSERA_CUDA_LAUNCHED();
}
template <class T, class SA, class SB, class D>
void launch_weights(const Args<SA, SB, D>& args, cudaStream_t stream) {
  const int64_t sums = args.part > 0 ? divide_up(args.terms, args.part) : args.experts.count;
  const dim3 grid(tiles(args.width), tiles(args.height), static_cast<unsigned>(sums));
  weights_kernel<T, SA, SB, D><<<grid, kThreads, 0, stream>>>(args);
  TESSERA_CUDA_LAUNCHED();
}

template <class S, class D>
void launch_biases(const BiasArgs<S, D>& args, int64_t experts, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(divide_up(args.dy.columns, kWarp)), static_cast<unsigned>(experts));
  biases_kernel<S, D><<<grid, kWarp * kBiasRows, 0, stream>>>(args);
  TESSERA_CUDA_LAUNCHED();
}

}  // namespace tessera::cuda::expert_gemm
