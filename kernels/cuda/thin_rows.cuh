// The products of rows, thin and wide: see thin_gemm.cuh
#pragma once

#include "kernels/cuda/thin_gemm.cuh"

namespace tessera::cuda::thin_gemm {

constexpr int kThinRows = kWarps * 32, kThinStep = 64;  // rows of a block; columns of X at a time

struct ThinArgs {
  Experts experts;
  int64_t all_rows, matrix;  // of all experts; elements from an expert's m to the next
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
  const Found at = find_tile<kThinRows>(args.experts, args.all_rows, blockIdx.x);
  if (at.expert < 0) return;  // all threads of the block
  const bf16* m = args.m + at.expert * args.matrix;
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
  int buffer = 0;
  for (int64_t step = 0; step < columns; step += kThinStep, buffer ^= 1) {
    uint4 x[2][4];
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < 4; ++i) x[half][i] = next[half][i];
    ptx::cp_async_wait<0>();
    __syncthreads();
    if (step + kThinStep < columns) load_step(step + kThinStep, buffer ^ 1);
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

template <class U>
struct WideArgs {
  Experts experts;
  int64_t all_rows, matrix;  // as in ThinArgs
  const U* u;                // [rows, terms]
  const bf16* m;             // of each expert [width, terms], or turned [terms, width]
  const bf16* add;           // [rows, width], may be y; null: 0
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

// M of the tile to shared memory. In a group of 32, column 8 q + 2 i + b of memory is column 2 q + b of the
// i-th 8 that mma computes: the lanes with 2 q and 2 q + 1 then hold 8 columns that follow one another.
template <class U, bool kTurned>
__device__ __forceinline__ void load_m(const WideArgs<U>& args, const WideTile<U>& tile, const bf16* m,
                                       int64_t first_column, bf16* of_m) {
  constexpr int kColumns = WideTile<U>::kColumns;
  const int m_pitch = tile.m_pitch(kTurned);
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
}
// U of the tile, whose first row is row `first` of all
template <class U>
__device__ __forceinline__ void load_u(const WideArgs<U>& args, const WideTile<U>& tile, int64_t first,
                                       int rows, bf16* of_u) {
  const int of_u_row = tile.padded / kPackWidth<U>;
  for (int i = threadIdx.x; i < WideTile<U>::kRows * of_u_row; i += kThreads) {
    const int row = i / of_u_row, term = i % of_u_row * kPackWidth<U>;
    uint4 raw{};
    if (term < args.terms && row < rows) raw = load_pack(args.u + (first + row) * args.terms + term);
    store_parts(raw, U{}, of_u + row * tile.u_pitch() + term, tile.u_size());
  }
}

template <class U, bool kTurned>
__global__ __launch_bounds__(kThreads) void wide_kernel(WideArgs<U> args) {
  using Tile = WideTile<U>;
  constexpr int kParts = Tile::kParts, kGroups = Tile::kGroups, kColumns = Tile::kColumns;
  extern __shared__ __align__(16) uint8_t memory[];
  const Tile tile(args.terms);
  auto* of_u = reinterpret_cast<bf16*>(memory);  // [parts][rows][terms]
  bf16* of_m = of_u + kParts * tile.u_size();    // [columns][terms], or turned: columns by place
  const auto blocks_of_row = static_cast<int>((args.width + kColumns - 1) / kColumns);
  const Found at = find_tile<Tile::kRows>(args.experts, args.all_rows, blockIdx.x / blocks_of_row);
  if (at.expert < 0) return;  // all threads of the block
  const int64_t first_column = int64_t{blockIdx.x % blocks_of_row} * kColumns;
  const bf16* m = args.m + at.expert * args.matrix;
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

  load_m<U, kTurned>(args, tile, m, first_column, of_m);
  load_u(args, tile, at.first + at.row, rows, of_u);
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

template <bool kTurned>
void launch_thin(const ThinArgs& args, cudaStream_t stream) {
  with_rank(args.rank, [&]<int kRank>() {
    launch(thin_kernel<kTurned, kRank>,
           {.blocks = args.experts.most_tiles(args.all_rows, kThinRows), .threads = kThreads}, stream, args);
  });
}
template <bool kTurned, class U>
void launch_wide(const WideArgs<U>& args, cudaStream_t stream) {
  using Tile = WideTile<U>;
  launch(
      wide_kernel<U, kTurned>,
      {.blocks = args.experts.most_tiles(args.all_rows, Tile::kRows) * divide_up(args.width, Tile::kColumns),
       .threads = kThreads,
       .shared_bytes = Tile(args.terms).bytes(kTurned)},
      stream, args);
}
}  // namespace tessera::cuda::thin_gemm
