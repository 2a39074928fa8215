// Products of rows of experts with matrices of which one side is thin, in bf16 through mma with fp32 sums:
// those of adapters, whose rank is small, and of a router. They take as long as the wide matrix takes to be
// read, or to be read and written.
//
//   thin     u[r, :] = scale X[r, :] M[e], for the rows r of every expert e. A warp has 32 rows and all
//            columns of u.
//   wide     y[r, :] = add[r, :] + U[r, :] M[e]. U and M are in shared memory.
//   weights  D[e] (+)= the sum over the rows r of e of X[r, :]^T (w_r U[r, :]), or its transpose. A block has
//            128 columns of X and up to 64 of U.
// U may be fp32 in the last two, which is split into two bf16, so that 16 bits of it count.
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
constexpr int kMostRank = 64;    // of thin, of wide with a U in bf16, and of a block of weights
constexpr int kMostTerms = 128;  // of wide with a U in fp32

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

// wide and weights: a thin operand in shared memory, of fp32 in two parts whose sum it is

template <class U>
constexpr int kPartsOf = std::is_same_v<U, float> ? 2 : 1;

// 16 bytes of a row
__device__ __forceinline__ void store_parts(uint4 pack, bf16 /*type*/, bf16* to, int64_t /*other*/) {
  *reinterpret_cast<uint4*>(to) = pack;
}
__device__ __forceinline__ void store_parts(uint4 pack, float /*type*/, bf16* to, int64_t other) {
  const float x[4] = {__uint_as_float(pack.x), __uint_as_float(pack.y), __uint_as_float(pack.z),
                      __uint_as_float(pack.w)};
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t rounded = ptx::pack_bf16(x[i], x[i + 1]);
    *reinterpret_cast<uint32_t*>(to + i) = rounded;
    *reinterpret_cast<uint32_t*>(to + other + i) = ptx::pack_bf16(
        x[i] - __uint_as_float(rounded << 16), x[i + 1] - __uint_as_float(rounded & 0xffff0000u));
  }
}

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

// A warp has kGroups groups of 32 columns, and 16 rows of the block's at a time
template <class U>
struct WideTile {
  static constexpr int kParts = kPartsOf<U>, kGroups = kParts == 2 ? 1 : 2, kRows = kParts == 2 ? 64 : 128,
                       kColumns = kWarps * 32 * kGroups;
  int padded;  // terms

  __host__ __device__ explicit WideTile(int terms) : padded((terms + 15) / 16 * 16) {}
  __host__ __device__ int u_pitch() const { return padded + 8; }
  __host__ __device__ int u_size() const { return kRows * u_pitch(); }
  __host__ __device__ int m_pitch(bool turned) const { return turned ? kColumns + 8 : padded + 8; }
  __host__ __device__ int64_t bytes(bool turned) const {
    return 2 * (kParts * int64_t{u_size()} + int64_t{turned ? padded : kColumns} * m_pitch(turned));
  }
};

template <class U, bool kTurned>
__global__ __launch_bounds__(kThreads) void wide_kernel(WideArgs<U> args) {
  using Tile = WideTile<U>;
  constexpr int kParts = Tile::kParts, kGroups = Tile::kGroups, kColumns = Tile::kColumns;
  extern __shared__ __align__(16) uint8_t memory[];
  const Tile tile(args.terms);
  auto* of_u = reinterpret_cast<bf16*>(memory);  // [parts][rows][terms]
  bf16* of_m = of_u + kParts * tile.u_size();    // [columns][terms], or turned: columns by place
  const auto blocks_of_row = static_cast<int>((args.width + kColumns - 1) / kColumns);
  const Found at = find_rows<Tile::kRows>(args.experts, blockIdx.x / blocks_of_row);
  if (at.expert < 0) return;  // all threads of the block
  const int64_t first_column = int64_t{blockIdx.x % blocks_of_row} * kColumns;
  const bf16* m = args.m + at.expert * args.experts.matrix;
  const int m_pitch = tile.m_pitch(kTurned), u_pitch = tile.u_pitch();
  const auto rows = static_cast<int>(min(at.rows - at.row, int64_t{Tile::kRows}));

  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4,
            warp_column = threadIdx.x / kWarp * 32 * kGroups;
  const int64_t column = first_column + warp_column + 8 * t;
  const auto place_of = [&](int row, int group) {
    return (at.first + at.row + row) * args.width + column + 32 * group;
  };
  const auto is_there = [&](int row, int group) { return row < rows && column + 32 * group < args.width; };
  uint4 next[kGroups][2];  // of y, of rows g and g + 8
  const auto load_next = [&](int row) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        next[group][i] = args.add && is_there(row + g + 8 * i, group)
                             ? load_pack(args.add + place_of(row + g + 8 * i, group))
                             : uint4{};
  };
  load_next(0);

  // In a group of 32, column 8 q + 2 i + b of memory is column 2 q + b of the i-th 8 that mma computes: the
  // lanes with 2 q and 2 q + 1 then hold 8 columns that follow one another.
  if constexpr (kTurned) {
    for (int i = threadIdx.x; i < tile.padded * (kColumns / 8); i += kThreads) {
      const int term = i / (kColumns / 8), of_tile = i % (kColumns / 8) * 8;
      uint4 raw{};
      if (term < args.terms && first_column + of_tile < args.width)
        raw = load_pack(m + term * args.width + first_column + of_tile);
      auto* to = of_m + term * m_pitch + of_tile / 32 * 32 + of_tile % 32 / 4;
      const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
      for (int word = 0; word < 4; ++word) *reinterpret_cast<uint32_t*>(to + 8 * word) = words[word];
    }
  } else {
    const int of_row = tile.padded / 8;
    for (int i = threadIdx.x; i < kColumns * of_row; i += kThreads) {
      const int of_tile = i / of_row, term = i % of_row * 8,
                place = of_tile / 32 * 32 + of_tile % 8 / 2 * 8 + of_tile % 32 / 8 * 2 + of_tile % 2;
      uint4 raw{};
      if (term < args.terms && first_column + of_tile < args.width)
        raw = load_pack(m + (first_column + of_tile) * args.terms + term);
      *reinterpret_cast<uint4*>(of_m + place * m_pitch + term) = raw;
    }
  }
  const int of_u_row = tile.padded / kPackWidth<U>;
  for (int i = threadIdx.x; i < Tile::kRows * of_u_row; i += kThreads) {
    const int row = i / of_u_row, term = i % of_u_row * kPackWidth<U>;
    uint4 raw{};
    if (term < args.terms && row < rows)
      raw = load_pack(args.u + (at.first + at.row + row) * args.terms + term);
    store_parts(raw, U{}, of_u + row * u_pitch + term, tile.u_size());
  }
  __syncthreads();

  const uint32_t u = shared_address(of_u + (lane / 8 % 2 * 8 + lane % 8) * u_pitch + lane / 16 * 8),
                 matrix = shared_address(
                     of_m + (kTurned
                                 ? (lane / 8 % 2 * 8 + lane % 8) * m_pitch + warp_column + lane / 16 * 8
                                 : (warp_column + lane / 16 * 8 + lane % 8) * m_pitch + lane / 8 % 2 * 8));
  for (int row = 0; row < rows; row += 16) {
    uint4 old[kGroups][2];
#pragma unroll
    for (int group = 0; group < kGroups; ++group)
      old[group][0] = next[group][0], old[group][1] = next[group][1];
    load_next(row + 16);
    float sums[kGroups][4][4] = {};
    for (int term = 0; term < tile.padded; term += 16) {
      uint32_t a[kParts][4];
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        ptx::ldmatrix_x4(a[part], u + 2 * (part * tile.u_size() + row * u_pitch + term));
#pragma unroll
      for (int group = 0; group < kGroups; ++group)
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
          uint32_t b[4];
          const int side = 32 * group + 8 * j;
          if constexpr (kTurned)
            ptx::ldmatrix_x4_trans(b, matrix + 2 * (term * m_pitch + side));
          else
            ptx::ldmatrix_x4(b, matrix + 2 * (side * m_pitch + term));
#pragma unroll
          for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int part = 0; part < kParts; ++part)
              ptx::mma_m16n8k16(sums[group][j + n], a[part], b[2 * n], b[2 * n + 1]);
        }
    }
#pragma unroll
    for (int group = 0; group < kGroups; ++group)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (!is_there(row + g + 8 * i, group)) continue;
        float values[8];
        unpack<bf16>(old[group][i], values);
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
          for (int n = 0; n < 2; ++n) values[2 * j + n] += sums[group][j][2 * i + n];
        store_pack(args.y + place_of(row + g + 8 * i, group), pack<bf16>(values));
      }
  }
}

// weights

constexpr int kWeightsRows = 32, kWeightsColumns = kWarps * 32;  // rows at a time; columns of a block

template <class U, class D>
struct WeightsArgs {
  Experts experts;
  Rows x;
  const U* u;  // [rows, rank]
  int rank;
  const float* weights = nullptr;    // w_r = weights[numbers[r]], with a U of bf16; null: 1
  const int32_t* numbers = nullptr;  // of weights
  D* d;                              // of each expert [columns, rank], or turned [rank, columns]
  bool accumulate;
  int64_t part = 0;  // above 0: instead of an expert a block has so many of all rows
};

// kRank: the block's share of the rank
template <class U, int kRank>
struct WeightsTile {
  static constexpr int kStages = kRank == kMostRank ? 3 : 4;
  static constexpr int kPitch = kWeightsColumns + 8, kXSize = kWeightsRows * kPitch;
  static constexpr int kRankPitch = kRank + 8, kUSize = kWeightsRows * kRankPitch;  // of a part
  static constexpr int kStage = kXSize + kPartsOf<U> * kUSize;
  static constexpr int64_t kBytes = int64_t{2} * kStages * kStage;
};

template <bool kTurned, int kRank, class U, class D>
__global__ __launch_bounds__(kThreads) void weights_kernel(WeightsArgs<U, D> args) {
  using Tile = WeightsTile<U, kRank>;
  constexpr int kParts = kPartsOf<U>, kStages = Tile::kStages, kAhead = kStages - 1;
  constexpr int kPacks = kWeightsRows * kWeightsColumns / 8 / kThreads;  // of X, a thread and stage
  constexpr int kOfRow = kRank / kPackWidth<U>, kRankPacks = kWeightsRows * kOfRow;  // of U, a stage
  constexpr int kHeld = (kRankPacks + kThreads - 1) / kThreads;                      // of U, a thread
  extern __shared__ __align__(16) uint8_t memory[];
  auto* stages_at = reinterpret_cast<bf16*>(memory);  // [stages][X, then the parts of U]
  const auto x_at = [&](int stage) { return stages_at + stage % kStages * Tile::kStage; };
  const auto u_at = [&](int stage) { return x_at(stage) + Tile::kXSize; };
  const int expert = blockIdx.y, first_rank = blockIdx.z * kRank;
  const int64_t begin = args.part > 0 ? expert * args.part : args.experts.offsets[expert],
                end = args.part > 0 ? min(begin + args.part, args.experts.rows)
                                    : args.experts.offsets[expert + 1],
                first_column = int64_t{blockIdx.x} * kWeightsColumns;
  const auto stages = static_cast<int>((end - begin + kWeightsRows - 1) / kWeightsRows);
  if (stages == 0 && args.accumulate) return;

  const int own_row = threadIdx.x / (kWeightsColumns / 8),
            own_column = threadIdx.x % (kWeightsColumns / 8) * 8;
  const bool has_column = first_column + own_column < args.x.columns;
  const auto row_of = [&](int stage, int p) {
    return begin + int64_t{stage} * kWeightsRows + own_row + p * (kWeightsRows / kPacks);
  };
  // What says where a stage's rows are is read a stage ahead.
  int32_t numbers[kPacks];
  const auto find_next = [&](int stage) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
      if (args.x.numbers && row_of(stage, p) < end) numbers[p] = args.x.numbers[row_of(stage, p)];
  };
  const auto start = [&](int stage) {
    if (stage < stages)
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        const bool is_there = row_of(stage, p) < end && has_column;
        const int64_t row = args.x.numbers ? numbers[p] / args.x.active : row_of(stage, p);
        ptx::cp_async_16(
            shared_address(x_at(stage) + (own_row + p * (kWeightsRows / kPacks)) * Tile::kPitch + own_column),
            is_there ? args.x.data + row * args.x.columns + first_column + own_column : args.x.data,
            is_there);
      }
    ptx::cp_async_commit();
    find_next(stage + 1);
  };
  uint4 held[kHeld];
  float held_weights[kHeld];
  int32_t held_numbers[kHeld];
  const auto held_row = [&](int stage, int p) {
    return begin + int64_t{stage} * kWeightsRows + (p * kThreads + static_cast<int>(threadIdx.x)) / kOfRow;
  };
  const auto is_held = [&](int stage, int p) {
    return p * kThreads + static_cast<int>(threadIdx.x) < kRankPacks && held_row(stage, p) < end;
  };
  const auto find_held = [&](int stage) {
#pragma unroll
    for (int p = 0; p < kHeld; ++p)
      if (args.weights && is_held(stage, p)) held_numbers[p] = args.numbers[held_row(stage, p)];
  };
  const auto load_held = [&](int stage) {
#pragma unroll
    for (int p = 0; p < kHeld; ++p) {
      const int rank = first_rank + (p * kThreads + static_cast<int>(threadIdx.x)) % kOfRow * kPackWidth<U>;
      const bool is_there = is_held(stage, p) && rank < args.rank;
      held[p] = is_there ? load_pack(args.u + held_row(stage, p) * args.rank + rank) : uint4{};
      held_weights[p] = is_there && args.weights ? args.weights[held_numbers[p]] : 1.0f;
    }
    find_held(stage + 1);
  };
  const auto store_held = [&](int stage) {
#pragma unroll
    for (int p = 0; p < kHeld; ++p) {
      const int number = p * kThreads + static_cast<int>(threadIdx.x);
      if (number >= kRankPacks) continue;
      if constexpr (std::is_same_v<U, bf16>) {
        if (args.weights) {
          float values[8];
          unpack<bf16>(held[p], values);
#pragma unroll
          for (float& value : values) value *= held_weights[p];
          held[p] = pack<bf16>(values);
        }
      }
      store_parts(held[p], U{},
                  u_at(stage) + number / kOfRow * Tile::kRankPitch + number % kOfRow * kPackWidth<U>,
                  Tile::kUSize);
    }
  };
  find_next(0);
  find_held(0);
  for (int stage = 0; stage < kAhead; ++stage) {
    start(stage);
    load_held(stage);
    store_held(stage);
  }
  load_held(kAhead);

  const int lane = threadIdx.x % kWarp, warp_column = threadIdx.x / kWarp * 32;
  const int of_x = (lane / 16 * 8 + lane % 8) * Tile::kPitch + warp_column + lane / 8 % 2 * 8,
            of_u = (lane / 8 % 2 * 8 + lane % 8) * Tile::kRankPitch + lane / 16 * 8;
  float sums[2][kRank / 8][4] = {};
  for (int stage = 0; stage < stages; ++stage) {
    ptx::cp_async_wait<kAhead - 1>();
    __syncthreads();
    start(stage + kAhead);
    store_held(stage + kAhead);
    load_held(stage + kAhead + 1);
    const uint32_t x = shared_address(x_at(stage) + of_x), u = shared_address(u_at(stage) + of_u);
#pragma unroll
    for (int k = 0; k < kWeightsRows; k += 16) {
      uint32_t a[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) ptx::ldmatrix_x4_trans(a[i], x + 2 * (k * Tile::kPitch + 16 * i));
#pragma unroll
      for (int part = 0; part < kParts; ++part)
#pragma unroll
        for (int j = 0; j < kRank / 8; j += 2) {
          uint32_t b[4];
          ptx::ldmatrix_x4_trans(b, u + 2 * (part * Tile::kUSize + k * Tile::kRankPitch + 8 * j));
#pragma unroll
          for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int n = 0; n < 2; ++n) ptx::mma_m16n8k16(sums[i][j + n], a[i], b[2 * n], b[2 * n + 1]);
        }
    }
  }
  ptx::cp_async_wait<0>();
  D* d = args.d + expert * args.experts.matrix;
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < kRank / 8; ++j)
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int64_t column = first_column + warp_column + 16 * i + n / 2 * 8 + lane / 4;
        const int rank = first_rank + 8 * j + lane % 4 * 2 + n % 2;
        if (column >= args.x.columns || rank >= args.rank) continue;
        D& to = d[kTurned ? rank * args.x.columns + column : column * args.rank + rank];
        to = static_cast<D>(sums[i][j][n] + (args.accumulate ? static_cast<float>(to) : 0.0f));
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
  using Tile = WideTile<U>;
  launch(wide_kernel<U, kTurned>,
         {.blocks = most_tiles(args.experts, Tile::kRows) * divide_up(args.width, Tile::kColumns),
          .threads = kThreads,
          .shared_bytes = Tile(args.terms).bytes(kTurned)},
         stream, args);
}
template <bool kTurned, class U, class D>
void launch_weights(const WeightsArgs<U, D>& args, cudaStream_t stream) {
  with_rank(args.rank, [&]<int kRank>() {
    const dim3 grid(
        static_cast<unsigned>(divide_up(args.x.columns, kWeightsColumns)),
        static_cast<unsigned>(args.part > 0 ? divide_up(args.experts.rows, args.part) : args.experts.count),
        static_cast<unsigned>(divide_up(args.rank, kRank)));
    const auto kernel = weights_kernel<kTurned, kRank, U, D>;
    constexpr auto kBytes = static_cast<int>(WeightsTile<U, kRank>::kBytes);
    TESSERA_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    kernel<<<grid, kThreads, kBytes, stream>>>(args);
    TESSERA_CUDA_LAUNCHED();
  });
}

}  // namespace tessera::cuda::thin_gemm
