// Products of rows of experts with matrices of which one side is thin, in bf16 through mma with fp32 sums:
// those of adapters, whose rank is small, and of a router. They take as long as the wide matrix takes to be
// read, or to be read and written.
//
//   thin     u[r, :] = scale X[r, :] M[e], for the rows r of every expert e. A warp has 32 rows and all
//            columns of u.
//   wide     y[r, :] = add[r, :] + U[r, :] M[e]. A warp has 128 rows and 32 columns; U may be fp32, which is
//            split into two bf16, so that 16 bits of it count.
//   weights  D[e] (+)= the sum over the rows r of e of X[r, :]^T (w_r U[r, :]), or its transpose. A block has
//            128 columns of X and all of U.
//
// Wide matrices go between registers and memory in packs of 16 bytes. A lane of mma holds pairs of elements
// that are 8 apart, where a pack has 8 in a row: so the lanes of thin and wide give the columns of a group of
// 32 other numbers, which M follows. Thin matrices pass through shared memory.
// X may be gathered: row r is numbers[r] / active. Sums have one order: the same bits each time, whatever the
// other rows are.
#pragma once

#include "kernels/cuda/experts_gemm.cuh"
#include "kernels/cuda/launch.cuh"

namespace tessera::cuda::thin_gemm {

using expert_gemm::Found;

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kMostRank = 64;    // of thin and weights
constexpr int kMostTerms = 256;  // of wide, whose matrix is in shared memory

// Of all kernels: the experts, whose rows follow one another
struct Experts {
  const int32_t* offsets = nullptr;  // [count + 1]; null: one expert with all rows
  int count = 1;
  int64_t rows;    // of all
  int64_t matrix;  // elements from an expert's m, or d, to the next
};

template <int kRows>
__device__ __forceinline__ Found find_rows(const Experts& experts, int64_t tile) {
  if (experts.offsets) return expert_gemm::find_tile<kRows>(experts.offsets, experts.count, tile);
  return {0, 0, experts.rows, tile * kRows};
}

// The gathered matrix
struct Rows {
  const bf16* data;
  int64_t columns;
  const int32_t* numbers = nullptr;  // null: row r itself
  int active = 1;

  __device__ const bf16* row(int64_t r) const { return data + (numbers ? numbers[r] / active : r) * columns; }
};

template <class T>
__device__ __forceinline__ uint32_t shared_address(const T* at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

// thin

constexpr int kThinRows = kWarps * 32, kThinStep = 64;  // rows of a block; columns of X at a time

struct ThinArgs {
  Experts experts;
  Rows x;
  const bf16* m;  // of each expert [rank, columns], or turned [columns, rank]
  bf16* u;        // [rows, rank]
  float scale;
  int rank;
};

// The matrix of kThinStep columns of X in shared memory, twice: one is read while the other comes. Rows are
// as far apart as it takes to read them without bank conflicts.
template <bool kTurned, int kRank>
struct ThinMatrix;
template <int kRank>
struct ThinMatrix<false, kRank> {  // [kRank][kThinStep]
  static constexpr int kPacks = kRank * kThinStep / 8, kPitch = kThinStep + 32, kSize = kRank * kPitch;
  static __device__ int rank_of(int pack) { return pack / (kThinStep / 8); }
  static __device__ int column_of(int pack) { return pack % (kThinStep / 8) * 8; }
  static __device__ int place(int rank, int column) { return rank * kPitch + column; }
  // The operands of columns 32 half .. for the 16 of rank from 8 j on: [step][column of 8, half of 16]
  static __device__ void load(uint32_t at, int j, int half, uint32_t (&b)[2][4]) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const uint4 pack =
          ptx::load_shared_uint4(at + 2 * place(8 * (j + n) + lane / 4, 32 * half + lane % 4 * 8));
      b[0][2 * n] = pack.x, b[0][2 * n + 1] = pack.y, b[1][2 * n] = pack.z, b[1][2 * n + 1] = pack.w;
    }
  }
};
template <int kRank>
struct ThinMatrix<true, kRank> {  // [kThinStep][kRank]
  static constexpr int kPacks = kRank * kThinStep / 8, kPitch = kRank + 8;
  static constexpr int kSize = kThinStep * kPitch + kThinStep / 8 * 16;
  static __device__ int rank_of(int pack) { return pack % (kRank / 8) * 8; }
  static __device__ int column_of(int pack) { return pack / (kRank / 8); }
  static __device__ int place(int rank, int column) { return column * kPitch + column / 8 * 16 + rank; }
  static __device__ void load(uint32_t at, int j, int half, uint32_t (&b)[2][4]) {
    const int lane = threadIdx.x % kWarp, row = lane % 8, upper = lane / 8 % 2;
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const int column = 32 * half + row / 2 * 8 + 4 * step + 2 * upper + row % 2;
      ptx::ldmatrix_x4_trans(b[step], at + 2 * place(8 * (j + lane / 16), column));
    }
  }
};

// kRank: the rank, rounded up to 16, 32 or 64
template <bool kTurned, int kRank>
__global__ __launch_bounds__(kThreads) void thin_kernel(ThinArgs args) {
  using Matrix = ThinMatrix<kTurned, kRank>;
  __shared__ __align__(16) bf16 of_m[2][Matrix::kSize];
  const Found at = find_rows<kThinRows>(args.experts, blockIdx.x);
  if (at.expert < 0) return;  // all threads of the block
  const bf16* m = args.m + at.expert * args.experts.matrix;
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const int64_t columns = args.x.columns, first = at.row + threadIdx.x / kWarp * 32;
  const bf16* rows[4];  // g, g + 8, ..; null: there is none
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t row = first + g + 8 * i;
    rows[i] = row < at.rows ? args.x.row(at.first + row) : nullptr;
  }
  uint4 next[2][4];  // [half of the step][row]
  const auto load_step = [&](int64_t step, int buffer) {
#pragma unroll
    for (int p = 0; p < Matrix::kPacks; p += kThreads) {
      const int pack = p + static_cast<int>(threadIdx.x), rank = Matrix::rank_of(pack),
                column = Matrix::column_of(pack);
      const int64_t of_m_row = kTurned ? step + column : rank;
      const bool is_there = rank < args.rank && step + column < columns;
      const bf16* from = m + (kTurned ? of_m_row * args.rank + rank : of_m_row * columns + step + column);
      ptx::cp_async_16(shared_address(of_m[buffer] + Matrix::place(rank, column)), is_there ? from : m,
                       is_there);
    }
    ptx::cp_async_commit();
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t column = step + 32 * half + 8 * t;
        next[half][i] = rows[i] && column < columns ? load_pack(rows[i] + column) : uint4{};
      }
  };
  float sums[2][kRank / 8][4] = {};
  load_step(0, 0);
  for (int64_t step = 0, buffer = 0; step < columns; step += kThinStep, buffer ^= 1) {
    uint4 x[2][4];
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < 4; ++i) x[half][i] = next[half][i];
    ptx::cp_async_wait<0>();
    __syncthreads();
    if (step + kThinStep < columns) load_step(step + kThinStep, static_cast<int>(buffer ^ 1));
    const uint32_t matrix = shared_address(of_m[buffer]);
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int j = 0; j < kRank / 8; j += 2) {
        uint32_t b[2][4];
        Matrix::load(matrix, j, half, b);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint4 &upper = x[half][2 * i], &lower = x[half][2 * i + 1];
          const uint32_t a[2][4] = {{upper.x, lower.x, upper.y, lower.y},
                                    {upper.z, lower.z, upper.w, lower.w}};
#pragma unroll
          for (int s = 0; s < 2; ++s)
#pragma unroll
            for (int n = 0; n < 2; ++n) ptx::mma_m16n8k16(sums[i][j + n], a[s], b[s][2 * n], b[s][2 * n + 1]);
        }
      }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t row = first + g + 8 * i;
    if (row >= at.rows) continue;
#pragma unroll
    for (int j = 0; j < kRank / 8; ++j) {
      const int column = 8 * j + 2 * t;
      const float* pair = sums[i / 2][j] + i % 2 * 2;
      if (column < args.rank)
        *reinterpret_cast<uint32_t*>(args.u + (at.first + row) * args.rank + column) =
            ptx::pack_bf16(args.scale * pair[0], args.scale * pair[1]);
    }
  }
}

// wide

constexpr int kWideRows = 128, kWideColumns = kWarps * 32;  // of a block

template <class U>
struct WideArgs {
  Experts experts;
  const U* u;       // [rows, terms]
  const bf16* m;    // of each expert [width, terms], or turned [terms, width]
  const bf16* add;  // [rows, width], may be y; null: 0
  bf16* y;
  int64_t width;
  int terms;
};
inline int wide_steps(int terms) { return (terms + 15) / 16; }
inline int64_t wide_shared_bytes(bool turned, int terms) {
  const int64_t padded = 16 * wide_steps(terms);
  return 2 * (turned ? padded * (kWideColumns + 8) : kWideColumns * (padded + 8));
}

// The operand of rows g and g + 8 and of terms k, k + 1, k + 8, k + 9: of fp32 its two parts
struct WideOperand {
  uint32_t words[2][4];

  __device__ void set(int i, const bf16* at) { words[0][i] = *reinterpret_cast<const uint32_t*>(at); }
  __device__ void set(int i, const float* at) {
    const auto pair = *reinterpret_cast<const float2*>(at);
    const uint32_t rounded = ptx::pack_bf16(pair.x, pair.y);
    words[0][i] = rounded;
    words[1][i] = ptx::pack_bf16(pair.x - __uint_as_float(rounded << 16),
                                 pair.y - __uint_as_float(rounded & 0xffff0000u));
  }
};

template <class U, bool kTurned>
__global__ __launch_bounds__(kThreads) void wide_kernel(WideArgs<U> args) {
  constexpr int kParts = std::is_same_v<U, float> ? 2 : 1;
  extern __shared__ __align__(16) uint8_t memory[];
  auto* of_m = reinterpret_cast<bf16*>(memory);  // [kWideColumns][terms], or turned: columns by place
  const auto blocks_of_row = static_cast<int>((args.width + kWideColumns - 1) / kWideColumns);
  const Found at = find_rows<kWideRows>(args.experts, blockIdx.x / blocks_of_row);
  if (at.expert < 0) return;  // all threads of the block
  const int64_t first_column = int64_t{blockIdx.x % blocks_of_row} * kWideColumns;
  const bf16* m = args.m + at.expert * args.experts.matrix;
  const int steps = (args.terms + 15) / 16, pitch = kTurned ? kWideColumns + 8 : 16 * steps + 8;
  // In a group of 32, column 8 q + 2 i + b of memory is column 2 q + b of the i-th 8 that mma computes: the
  // lanes with 2 q and 2 q + 1 then hold 8 columns that follow one another.
  if constexpr (kTurned) {
    for (int pack = threadIdx.x; pack < 16 * steps * (kWideColumns / 8); pack += kThreads) {
      const int term = pack / (kWideColumns / 8), column = pack % (kWideColumns / 8) * 8;
      uint4 raw{};
      if (term < args.terms && first_column + column < args.width)
        raw = load_pack(m + term * args.width + first_column + column);
      auto* to = of_m + term * pitch + column / 32 * 32 + column % 32 / 4;
      const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) *reinterpret_cast<uint32_t*>(to + 8 * i) = words[i];
    }
  } else {
    for (int pack = threadIdx.x; pack < kWideColumns * 2 * steps; pack += kThreads) {
      const int column = pack / (2 * steps), term = pack % (2 * steps) * 8,
                place = column / 32 * 32 + column % 8 / 2 * 8 + column % 32 / 8 * 2 + column % 2;
      uint4 raw{};
      if (term < args.terms && first_column + column < args.width)
        raw = load_pack(m + (first_column + column) * args.terms + term);
      *reinterpret_cast<uint4*>(of_m + place * pitch + term) = raw;
    }
  }
  __syncthreads();
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4, warp_column = threadIdx.x / kWarp * 32;
  const int64_t column = first_column + warp_column + 8 * t;
  const uint32_t matrix =
      shared_address(of_m + (kTurned ? (lane / 8 % 2 * 8 + lane % 8) * pitch + warp_column + lane / 16 * 8
                                     : (warp_column + lane / 16 * 8 + lane % 8) * pitch + lane / 8 % 2 * 8));
  for (int64_t first = at.row; first < at.rows && first < at.row + kWideRows; first += 32) {
    const auto is_there = [&](int i) { return first + g + 8 * i < at.rows && column < args.width; };
    uint4 old[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (args.add && is_there(i))
        old[i] = load_pack(args.add + (at.first + first + g + 8 * i) * args.width + column);
    float sums[2][4][4] = {};
    for (int step = 0; step < steps; ++step) {
      WideOperand a[2] = {};
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int term = 16 * step + 8 * half + 2 * t;
          if (first + g + 8 * i < at.rows && term < args.terms)
            a[i / 2].set(i % 2 + 2 * half, args.u + (at.first + first + g + 8 * i) * args.terms + term);
        }
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        uint32_t b[4];
        if constexpr (kTurned)
          ptx::ldmatrix_x4_trans(b, matrix + 2 * (16 * step * pitch + 8 * j));
        else
          ptx::ldmatrix_x4(b, matrix + 2 * (8 * j * pitch + 16 * step));
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
          for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int part = 0; part < kParts; ++part)
              ptx::mma_m16n8k16(sums[i][j + n], a[i].words[part], b[2 * n], b[2 * n + 1]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (!is_there(i)) continue;
      float values[8];
      unpack<bf16>(old[i], values);
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int n = 0; n < 2; ++n) values[2 * j + n] += sums[i / 2][j][i % 2 * 2 + n];
      store_pack(args.y + (at.first + first + g + 8 * i) * args.width + column, pack<bf16>(values));
    }
  }
}

// weights

constexpr int kWeightsRows = 32, kWeightsColumns = kWarps * 32;  // rows at a time; columns of a block

struct WeightsArgs {
  Experts experts;
  Rows x;
  const bf16* u;  // [rows, rank]
  int rank;
  const float* weights;    // w_r = weights[numbers[r]]; null: 1
  const int32_t* numbers;  // of weights
  bf16* d;                 // of each expert [columns, rank], or turned [rank, columns]
  bool accumulate;
};

template <bool kTurned, int kRank>
__global__ __launch_bounds__(kThreads) void weights_kernel(WeightsArgs args) {
  constexpr int kStages = kRank == kMostRank ? 3 : 4, kAhead = kStages - 1;
  constexpr int kPitch = kWeightsColumns + 8, kRankPitch = kRank + 8;
  constexpr int kPacks = kWeightsRows * kWeightsColumns / 8 / kThreads;  // of X, a thread and stage
  constexpr int kOfRow = kRank / 8, kRankPacks = kWeightsRows * kOfRow;  // of U, a stage
  constexpr int kHeld = (kRankPacks + kThreads - 1) / kThreads;          // of U, a thread
  __shared__ __align__(16) bf16 of_x[kStages][kWeightsRows * kPitch];
  __shared__ __align__(16) bf16 of_u[kStages][kWeightsRows * kRankPitch];
  const int expert = blockIdx.y;
  const int64_t begin = args.experts.offsets[expert], end = args.experts.offsets[expert + 1],
                first_column = int64_t{blockIdx.x} * kWeightsColumns;
  const auto stages = static_cast<int>((end - begin + kWeightsRows - 1) / kWeightsRows);
  if (stages == 0 && args.accumulate) return;

  const int own_row = threadIdx.x / (kWeightsColumns / 8),
            own_column = threadIdx.x % (kWeightsColumns / 8) * 8;
  const bool has_column = first_column + own_column < args.x.columns;
  const bf16* rows[kPacks];  // of the next stage; null: there is none
  const auto find_next = [&](int stage) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int64_t row = begin + int64_t{stage} * kWeightsRows + own_row + p * (kWeightsRows / kPacks);
      rows[p] = row < end ? args.x.row(row) : nullptr;
    }
  };
  const auto start = [&](int stage) {
    if (stage < stages)
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        const bool is_there = rows[p] && has_column;
        ptx::cp_async_16(shared_address(of_x[stage % kStages] +
                                        (own_row + p * (kWeightsRows / kPacks)) * kPitch + own_column),
                         is_there ? rows[p] + first_column + own_column : args.x.data, is_there);
      }
    ptx::cp_async_commit();
    find_next(stage + 1);
  };
  uint4 held[kHeld];
  float held_weights[kHeld];
  const auto load_held = [&](int stage) {
#pragma unroll
    for (int p = 0; p < kHeld; ++p) {
      const int pack = p * kThreads + static_cast<int>(threadIdx.x), rank = pack % kOfRow * 8;
      const int64_t row = begin + int64_t{stage} * kWeightsRows + pack / kOfRow;
      const bool is_there = pack < kRankPacks && row < end && rank < args.rank;
      held[p] = is_there ? load_pack(args.u + row * args.rank + rank) : uint4{};
      held_weights[p] = is_there && args.weights ? args.weights[args.numbers[row]] : 1.0f;
    }
  };
  const auto store_held = [&](int stage) {
#pragma unroll
    for (int p = 0; p < kHeld; ++p) {
      const int pack_number = p * kThreads + static_cast<int>(threadIdx.x);
      if (pack_number >= kRankPacks) continue;
      if (args.weights) {
        float values[8];
        unpack<bf16>(held[p], values);
#pragma unroll
        for (float& value : values) value *= held_weights[p];
        held[p] = pack<bf16>(values);
      }
      *reinterpret_cast<uint4*>(of_u[stage % kStages] + pack_number / kOfRow * kRankPitch +
                                pack_number % kOfRow * 8) = held[p];
    }
  };
  find_next(0);
  for (int stage = 0; stage < kAhead; ++stage) {
    start(stage);
    load_held(stage);
    store_held(stage);
  }
  load_held(kAhead);

  const int lane = threadIdx.x % kWarp, warp_column = threadIdx.x / kWarp * 32;
  const int x_at = (lane / 16 * 8 + lane % 8) * kPitch + warp_column + lane / 8 % 2 * 8,
            u_at = (lane / 8 % 2 * 8 + lane % 8) * kRankPitch + lane / 16 * 8;
  float sums[2][kRank / 8][4] = {};
  for (int stage = 0; stage < stages; ++stage) {
    ptx::cp_async_wait<kAhead - 1>();
    __syncthreads();
    start(stage + kAhead);
    store_held(stage + kAhead);
    load_held(stage + kAhead + 1);
    const uint32_t x = shared_address(of_x[stage % kStages] + x_at),
                   u = shared_address(of_u[stage % kStages] + u_at);
#pragma unroll
    for (int k = 0; k < kWeightsRows; k += 16) {
      uint32_t a[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) ptx::ldmatrix_x4_trans(a[i], x + 2 * (k * kPitch + 16 * i));
#pragma unroll
      for (int j = 0; j < kRank / 8; j += 2) {
        uint32_t b[4];
        ptx::ldmatrix_x4_trans(b, u + 2 * (k * kRankPitch + 8 * j));
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
          for (int n = 0; n < 2; ++n) ptx::mma_m16n8k16(sums[i][j + n], a[i], b[2 * n], b[2 * n + 1]);
      }
    }
  }
  ptx::cp_async_wait<0>();
  bf16* d = args.d + expert * args.experts.matrix;
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < kRank / 8; ++j)
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int64_t column = first_column + warp_column + 16 * i + n / 2 * 8 + lane / 4;
        const int rank = 8 * j + lane % 4 * 2 + n % 2;
        if (column >= args.x.columns || rank >= args.rank) continue;
        bf16& to = d[kTurned ? rank * args.x.columns + column : column * args.rank + rank];
        to = static_cast<bf16>(sums[i][j][n] + (args.accumulate ? static_cast<float>(to) : 0.0f));
      }
}

// Launches

// Whether rows of so many columns are whole packs
inline bool has_packs(const Tensor& matrix) {
  return matrix.dtype == DType::kBF16 && matrix.shape[-1] % 8 == 0 &&
         reinterpret_cast<uintptr_t>(matrix.data) % 16 == 0;
}

template <class Run>
void with_rank(int64_t rank, const Run& run) {
  if (rank <= 16) return run.template operator()<16>();
  if (rank <= 32) return run.template operator()<32>();
  run.template operator()<kMostRank>();
}

// Tiles of so many rows: as many as there can be
inline int64_t most_tiles(const Experts& experts, int64_t rows_of_tile) {
  return experts.offsets ? experts.rows / rows_of_tile + std::min<int64_t>(experts.count, experts.rows)
                         : divide_up(experts.rows, rows_of_tile);
}

template <bool kTurned>
void launch_thin(const ThinArgs& args, cudaStream_t stream) {
  with_rank(args.rank, [&]<int kRank>() {
    launch(thin_kernel<kTurned, kRank>, {.blocks = most_tiles(args.experts, kThinRows), .threads = kThreads},
           stream, args);
  });
}
template <bool kTurned, class U>
void launch_wide(const WideArgs<U>& args, cudaStream_t stream) {
  launch(wide_kernel<U, kTurned>,
         {.blocks = most_tiles(args.experts, kWideRows) * divide_up(args.width, kWideColumns),
          .threads = kThreads,
          .shared_bytes = wide_shared_bytes(kTurned, args.terms)},
         stream, args);
}
template <bool kTurned>
void launch_weights(const WeightsArgs& args, cudaStream_t stream) {
  with_rank(args.rank, [&]<int kRank>() {
    launch(weights_kernel<kTurned, kRank>,
           {.blocks = divide_up(args.x.columns, kWeightsColumns),
            .rows = args.experts.count,
            .threads = kThreads},
           stream, args);
  });
}

}  // namespace tessera::cuda::thin_gemm
