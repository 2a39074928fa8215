// Tiles of bf16 in shared memory as TMA writes them and wgmma reads them, and their products.
//
// A tile of R rows and C columns is C / 64 panels one after another, each R x 64: a panel's row is 128
// bytes, in which the 16-byte chunk c of row r stands at c ^ (r & 7) (PTX ISA 9.0, 5.5.7 and 9.7.15.5.1:
// 128-byte swizzle). Tiles begin at multiples of 1024 bytes, so that the offset in the tile tells the
// chunk.
//
// A head may be narrower than its tile. TMA fills the columns past its end with zeros, which add nothing
// to a product that sums over columns. It leaves these columns out when a result is written.
//
// The same descriptor serves a tile whichever of its dimensions a product sums over; only the offsets
// differ.
#pragma once

#include "kernels/base/ptx.cuh"
#include "kernels/hopper/ptx.cuh"
#include "kernels/hopper/sizes.h"

namespace tessera::hopper {

inline constexpr uint32_t kTileAlignment = 1024;

template <int kRows_, int kCols_>
struct Tile {
  static constexpr int kRows = kRows_, kCols = kCols_;
  static constexpr int kPanelBytes = kRows * kPanel * 2, kBytes = kRows * kCols * 2;
  static_assert(kCols % kPanel == 0 && kRows % 8 == 0);

  uint32_t base;  // shared address

  // An operand whose columns are summed over: 64 rows (A) or all rows of a
  // product (B) from `row`, columns from `col`
  __device__ __forceinline__ uint64_t sum_cols(int row, int col) const {
    return descriptor(col / kPanel * kPanelBytes + row * (kPanel * 2) + col % kPanel * 2);
  }
  // An operand whose rows are summed over, from `row`; its columns begin at a panel
  __device__ __forceinline__ uint64_t sum_rows(int row, int col) const {
    return descriptor(col / kPanel * kPanelBytes + row * (kPanel * 2));
  }
  // Where the 16 bytes from column 8 `chunk` of a row stand
  __device__ __forceinline__ uint32_t chunk_at(int row, int chunk) const {
    return base + chunk / 8 * kPanelBytes + row * (kPanel * 2) + ((chunk % 8) ^ (row & 7)) * 16;
  }

 private:
  // Bits 0-13 the address, 16-29 the distance of panels, 32-45 of groups of eight rows,
  // all in units of 16 bytes; 62-63 the swizzle, 1 for 128 bytes. Only the address
  // varies, so that offsets fold into one addition.
  __device__ __forceinline__ uint64_t descriptor(uint32_t offset) const {
    constexpr uint32_t kHigh = 1u << 30 | 8 * kPanel * 2 / 16, kLow = kPanelBytes / 16 << 16;
    return uint64_t{kHigh} << 32 | (((base & 0x3ffff) >> 4) + (kLow + offset / 16));
  }
};

// ---- copies of whole tiles: kWhole where the head is as wide as the tile, or both are one panel ----

// Counts on `barrier` with all the tile's bytes, whatever there is of them
template <bool kWhole, class T>
__device__ __forceinline__ void load_tile(T tile, const CUtensorMap& map, uint32_t barrier, int token,
                                          int head, int batch) {
  if constexpr (kWhole) {
    ptx::load_tile(tile.base, map, barrier, token, head, batch);
  } else {
#pragma unroll
    for (int panel = 0; panel < T::kCols / kPanel; ++panel) {
      ptx::load_panel(tile.base + panel * T::kPanelBytes, map, barrier, panel * kPanel, token, head, batch);
    }
  }
}
template <bool kWhole, class T>
__device__ __forceinline__ void store_tile(const CUtensorMap& map, T tile, int token, int head, int batch) {
  if constexpr (kWhole) {
    ptx::store_tile(map, tile.base, token, head, batch);
  } else {
#pragma unroll
    for (int panel = 0; panel < T::kCols / kPanel; ++panel) {
      ptx::store_panel(map, tile.base + panel * T::kPanelBytes, panel * kPanel, token, head, batch);
    }
  }
}

// ---- products of a warpgroup: begun here, done after commit and wait; `add` is false for d = ... ----

// d (+)= A B^T: 64 rows of A from a_row, kN rows of B from b_row, summed over all columns of both
template <int kN, class A, class B>
__device__ __forceinline__ void multiply_rows_rows(float (&d)[kN / 2], A a, int a_row, B b, int b_row,
                                                   bool add = false) {
  static_assert(A::kCols == B::kCols);
#pragma unroll
  for (int col = 0; col < A::kCols; col += kStepK) {
    ptx::Wgmma<kN>::template shared<ptx::Major::kSum, ptx::Major::kSum>(
        d, a.sum_cols(a_row, col), b.sum_cols(b_row, col), add || col > 0);
  }
}

// d (+)= P B: P [64, kSum] packed in registers, kSum rows of B from b_row and its kN columns from b_col
template <int kN, int kSum, class B>
__device__ __forceinline__ void multiply_registers_rows(float (&d)[kN / 2], const uint32_t (&p)[kSum / 4],
                                                        B b, int b_row, int b_col = 0, bool add = true) {
#pragma unroll
  for (int k = 0; k < kSum; k += kStepK) {
    ptx::Wgmma<kN>::template registers<ptx::Major::kOther>(d, &p[k / 4], b.sum_rows(b_row + k, b_col),
                                                           add || k > 0);
  }
}

// d (+)= A^T B: 64 columns of A from a_col, kN columns of B from b_col, summed over kSum rows of both
template <int kN, int kSum, class A, class B>
__device__ __forceinline__ void multiply_cols_cols(float (&d)[kN / 2], A a, int a_col, B b, int b_col,
                                                   bool add = false) {
#pragma unroll
  for (int row = 0; row < kSum; row += kStepK) {
    ptx::Wgmma<kN>::template shared<ptx::Major::kOther, ptx::Major::kOther>(
        d, a.sum_rows(row, a_col), b.sum_rows(row, b_col), add || row > 0);
  }
}

// The same of bytes in e4m3, of which a tile has two where one of bf16 has an element: kBytes of both are
// summed over
template <int kN, int kBytes, class A, class B>
__device__ __forceinline__ void multiply_bytes(float (&d)[kN / 2], A a, int a_row, B b, int b_row) {
#pragma unroll
  for (int col = 0; col < kBytes / 2; col += kStepK)
    ptx::WgmmaFp8<kN>::template shared<false>(d, a.sum_cols(a_row, col), b.sum_cols(b_row, col), col > 0);
}
// d = P B^T: P [64, kBytes] in registers, and the bytes of B from b_byte on
template <int kN, int kBytes, class B>
__device__ __forceinline__ void multiply_register_bytes(float (&d)[kN / 2], const uint32_t (&p)[kBytes / 8],
                                                        B b, int b_row, int b_byte) {
#pragma unroll
  for (int k = 0; k < kBytes; k += 2 * kStepK)
    ptx::WgmmaFp8<kN>::registers(d, &p[k / 8], b.sum_cols(b_row, (b_byte + k) / 2), k > 0);
}

// ---- fragments ----

// The first of a warpgroup's 64 rows that a thread has elements of. The other is 8 below.
__device__ __forceinline__ int lane_row() {
  return 16 * (threadIdx.x / 32 % kWarpsPerGroup) + threadIdx.x % 32 / 4;
}

// Accumulators to bf16, as the A operand of a product in registers
template <int kCount>
__device__ __forceinline__ void pack(uint32_t (&packed)[kCount / 2], const float (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) packed[i] = ptx::pack_bf16(x[2 * i], x[2 * i + 1]);
}

// A packed fragment [64, 4 kCount] of a warpgroup to a tile, from `row` and `col` on. Before TMA or wgmma
// reads it, fence_shared_for_async() and a barrier are needed.
template <int kCount, class T>
__device__ __forceinline__ void store_fragment(T tile, int row, int col, const uint32_t (&packed)[kCount]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const int at_row = row + 16 * warp + lane % 16, at_chunk = col / 8 + lane / 16;
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    ptx::stmatrix_x4(tile.chunk_at(at_row, at_chunk + 2 * j), packed[4 * j], packed[4 * j + 1],
                     packed[4 * j + 2], packed[4 * j + 3]);
  }
}

}  // namespace tessera::hopper
