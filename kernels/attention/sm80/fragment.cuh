// Tiles in shared memory, fragments in registers, and the three products that attention is made of.
//
// A SharedTile holds kRows x kCols bf16 as panels of 64 columns: a row of a panel is 128 bytes, eight chunks
// of 16, and chunk c of row r lies at place c ^ (r % 8). So the eight rows that one 8 x 8 matrix of ldmatrix
// reads lie in eight different groups of banks, whether it is read along rows or transposed.
//
// An Accumulator is a warp's M x N tile of fp32 in mma layout: at[m][n] is the 16 x 8 tile (m, n). Packed to
// bf16 it is, word for word, the A operand of a next product (operand_a): it need not leave the registers.
#pragma once

#include "kernels/attention/sm80/ptx.cuh"
#include "kernels/base/ptx.cuh"

namespace tessera::attention::sm80 {

template <int kRows, int kCols>
struct SharedTile {
  static constexpr int kRowBytes = 128, kPanelCols = kRowBytes / 2, kPanelBytes = kRows * kRowBytes;
  static constexpr int kBytes = kRows * kCols * 2;
  static_assert(kCols % kPanelCols == 0 && kRows % 8 == 0);

  uint32_t base;  // a multiple of 128

  // Where the chunk of 8 elements around (row, col) begins
  __device__ __forceinline__ uint32_t chunk(int row, int col) const {
    return base + col / kPanelCols * kPanelBytes + row * kRowBytes + (col % kPanelCols / 8 ^ row % 8) * 16;
  }
};

// Part `part` of the columns of a tile, which is cut into kParts
template <int kParts, int kRows, int kCols>
__device__ __forceinline__ SharedTile<kRows, kCols / kParts> columns_of(SharedTile<kRows, kCols> tile,
                                                                        int part) {
  return {tile.base + part * SharedTile<kRows, kCols / kParts>::kBytes};
}

// The address that a lane gives to ldmatrix for the 16 x 16 block at (row, col), both multiples of 16. The
// swizzle is an exclusive or of address bits 4..6, so `col` can be brought in last, as a constant.
template <int kRows, int kCols>
__device__ __forceinline__ uint32_t block_address(SharedTile<kRows, kCols> tile, uint32_t lane_offset,
                                                  int row, int col) {
  using T = SharedTile<kRows, kCols>;
  return ((tile.base + lane_offset) ^ col % T::kPanelCols * 2) + row * T::kRowBytes +
         col / T::kPanelCols * T::kPanelBytes;
}

// Which row and chunk of a 16 x 16 block each lane addresses; see block_address.
// Down first: matrices 0, 1 are the left half, 2, 3 the right. Across first: 0, 1 the upper, 2, 3 the lower.
__device__ __forceinline__ uint32_t lane_down_first() {
  const uint32_t lane = threadIdx.x % 32, row = lane % 16, chunk = lane / 16;
  return row * 128 + (chunk ^ row % 8) * 16;
}
__device__ __forceinline__ uint32_t lane_across_first() {
  const uint32_t lane = threadIdx.x % 32, row = lane % 8 + lane / 16 * 8, chunk = lane / 8 % 2;
  return row * 128 + (chunk ^ row % 8) * 16;
}

template <int kM, int kN>
struct Accumulator {
  static constexpr int kTilesM = kM / 16, kTilesN = kN / 8;
  float at[kTilesM][kTilesN][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kTilesM * kTilesN * 4; ++i) (&at[0][0][0])[i] = 0;
  }
  __device__ __forceinline__ void scale(float factor) {
#pragma unroll
    for (int i = 0; i < kTilesM * kTilesN * 4; ++i) (&at[0][0][0])[i] *= factor;
  }
};

template <int kM, int kK>
struct OperandA {
  uint32_t at[kM / 16][kK / 16][4];
};

template <int kM, int kN>
__device__ __forceinline__ OperandA<kM, kN> operand_a(const Accumulator<kM, kN>& x) {
  OperandA<kM, kN> a;
#pragma unroll
  for (int m = 0; m < kM / 16; ++m) {
#pragma unroll
    for (int k = 0; k < kN / 16; ++k) {
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float(&pair)[4] = x.at[m][2 * k + w / 2];
        a.at[m][k][w] = ptx::pack_bf16(pair[w % 2 * 2], pair[w % 2 * 2 + 1]);
      }
    }
  }
  return a;
}

// c += A B^T over all kCols columns: rows a_row.. of A, rows b_row.. of B
template <int kM, int kN, int kRowsA, int kRowsB, int kCols>
__device__ __forceinline__ void multiply_rows_rows(Accumulator<kM, kN>& c, SharedTile<kRowsA, kCols> a,
                                                   int a_row, SharedTile<kRowsB, kCols> b, int b_row) {
  const uint32_t a_lane = lane_down_first() + a_row * 128, b_lane = lane_across_first() + b_row * 128;
#pragma unroll
  for (int k = 0; k < kCols; k += 16) {
    uint32_t fa[kM / 16][4];
#pragma unroll
    for (int m = 0; m < kM / 16; ++m) ptx::ldmatrix_x4(fa[m], block_address(a, a_lane, 16 * m, k));
#pragma unroll
    for (int n = 0; n < kN / 16; ++n) {
      uint32_t fb[4];
      ptx::ldmatrix_x4(fb, block_address(b, b_lane, 16 * n, k));
#pragma unroll
      for (int m = 0; m < kM / 16; ++m) {
        ptx::mma_m16n8k16(c.at[m][2 * n], fa[m], fb[0], fb[1]);
        ptx::mma_m16n8k16(c.at[m][2 * n + 1], fa[m], fb[2], fb[3]);
      }
    }
  }
}

// c += A B: A in registers, rows b_row.. of B over all its columns
template <int kM, int kK, int kRowsB, int kN>
__device__ __forceinline__ void multiply_registers_rows(Accumulator<kM, kN>& c, const OperandA<kM, kK>& a,
                                                        SharedTile<kRowsB, kN> b, int b_row) {
  const uint32_t b_lane = lane_down_first() + b_row * 128;
#pragma unroll
  for (int k = 0; k < kK / 16; ++k) {
#pragma unroll
    for (int n = 0; n < kN / 16; ++n) {
      uint32_t fb[4];
      ptx::ldmatrix_x4_trans(fb, block_address(b, b_lane, 16 * k, 16 * n));
#pragma unroll
      for (int m = 0; m < kM / 16; ++m) {
        ptx::mma_m16n8k16(c.at[m][2 * n], a.at[m][k], fb[0], fb[1]);
        ptx::mma_m16n8k16(c.at[m][2 * n + 1], a.at[m][k], fb[2], fb[3]);
      }
    }
  }
}

// c += A^T B over rows `begin` to `end` of both: columns a_col.. of A, b_col.. of B. Rows are multiples of
// 16, columns of 32.
template <int kM, int kN, int kRows, int kColsA, int kColsB>
__device__ __forceinline__ void multiply_cols_cols(Accumulator<kM, kN>& c, SharedTile<kRows, kColsA> a,
                                                   int a_col, SharedTile<kRows, kColsB> b, int b_col,
                                                   int begin, int end) {
  static_assert(kColsA == SharedTile<kRows, kColsA>::kPanelCols && 64 % kN == 0);
  // A warp's columns lie in one panel, so they enter the lane's address once, as the constant k does above.
  const SharedTile<kRows, kColsB> b_panel = {b.base + b_col / 64 * SharedTile<kRows, kColsB>::kPanelBytes};
  const uint32_t a_lane = lane_across_first() ^ a_col * 2, b_lane = lane_down_first() ^ b_col % 64 * 2;
#pragma unroll
  for (int k = 0; k < kRows; k += 16) {
    if (k >= end) break;
    if (k < begin) continue;
    uint32_t fa[kM / 16][4];
#pragma unroll
    for (int m = 0; m < kM / 16; ++m) ptx::ldmatrix_x4_trans(fa[m], block_address(a, a_lane, k, 16 * m));
#pragma unroll
    for (int n = 0; n < kN / 16; ++n) {
      uint32_t fb[4];
      ptx::ldmatrix_x4_trans(fb, block_address(b_panel, b_lane, k, 16 * n));
#pragma unroll
      for (int m = 0; m < kM / 16; ++m) {
        ptx::mma_m16n8k16(c.at[m][2 * n], fa[m], fb[0], fb[1]);
        ptx::mma_m16n8k16(c.at[m][2 * n + 1], fa[m], fb[2], fb[3]);
      }
    }
  }
}

}  // namespace tessera::attention::sm80
