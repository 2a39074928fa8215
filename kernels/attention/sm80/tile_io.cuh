// Moving tiles between global and shared memory, 16 bytes a thread.
#pragma once

#include <cuda_bf16.h>

#include "kernels/attention/sm80/fragment.cuh"

namespace tessera::attention::sm80 {

using bf16 = __nv_bfloat16;

// A thread's share of loading tiles of kRows rows, one after another, from a [rows, cols] matrix. Columns of
// a tile from `cols` on become zeros, unless kWhole says that there are none.
template <int kThreads, int kRows, int kCols, bool kWhole>
class TileLoader {
 public:
  // `from` is row 0; the first tile begins at row `first`.
  __device__ __forceinline__ TileLoader(const bf16* from, int64_t stride, int first, int cols)
      : from_(from + (first + row()) * stride + col()), stride_(stride), has_columns_(col() < cols) {}

  // Starts copying the tile; of its rows, those from `rows` on become zeros.
  __device__ __forceinline__ void start(SharedTile<kRows, kCols> tile, int rows = kRows) const {
    const uint32_t to = tile.chunk(row(), col());
    const bf16* from = from_;
#pragma unroll
    for (int r = 0; r < kRows; r += kRowsAtOnce, from += kRowsAtOnce * stride_) {
      const uint32_t at = kKeepsPlace ? to + r * tile.kRowBytes : tile.chunk(row() + r, col());
      ptx::cp_async_16(at, from, row() + r < rows && (kWhole || has_columns_));
    }
  }
  __device__ __forceinline__ void move(int tiles) { from_ += tiles * kRows * stride_; }
  __device__ __forceinline__ void move_elements(int64_t elements) { from_ += elements; }

 private:
  static constexpr int kChunks = kCols / 8, kRowsAtOnce = kThreads / kChunks;
  static constexpr bool kKeepsPlace = kRowsAtOnce % 8 == 0;  // in the swizzle
  static_assert(kThreads % kChunks == 0 && kRows % kRowsAtOnce == 0);
  static __device__ __forceinline__ int row() { return threadIdx.x / kChunks; }
  static __device__ __forceinline__ int col() { return threadIdx.x % kChunks * 8; }

  const bf16* from_;
  int64_t stride_;
  bool has_columns_;
};

// A warp writes its kM rows of an accumulator, rounded to bf16, to rows first .. of a [rows, cols] matrix.
// What lies past its ends is dropped (kWhole: no column does). They pass through rows tile_row .. of a tile,
// which no other warp may touch.
template <bool kWhole, int kM, int kRows, int kCols>
__device__ __forceinline__ void store_rows(const Accumulator<kM, kCols>& x, SharedTile<kRows, kCols> tile,
                                           int tile_row, bf16* to, int64_t stride, int first, int rows,
                                           int cols) {
  const int lane = threadIdx.x % 32;
  __syncwarp();  // other lanes may still be reading, through ldmatrix, what the stores overwrite
#pragma unroll
  for (int m = 0; m < kM / 16; ++m) {
#pragma unroll
    for (int n = 0; n < kCols / 8; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = tile_row + 16 * m + 8 * r + lane / 4;
        ptx::store_shared(tile.chunk(row, 8 * n) + lane % 4 * 4,
                          ptx::pack_bf16(x.at[m][n][2 * r], x.at[m][n][2 * r + 1]));
      }
    }
  }
  __syncwarp();  // a lane reads chunks that four others wrote
  constexpr int kChunks = kCols / 8, kRowsAtOnce = 32 / kChunks;
#pragma unroll
  for (int r = 0; r < kM; r += kRowsAtOnce) {
    const int row = r + lane / kChunks, col = lane % kChunks * 8;
    if (first + row < rows && (kWhole || col < cols)) {
      *reinterpret_cast<uint4*>(to + (first + row) * stride + col) =
          ptx::load_shared_uint4(tile.chunk(tile_row + row, col));
    }
  }
}

// A warp's rows of dS^T, kM keys x kN queries, to the block of a tile at (row, col). A store writes 16 bytes
// of eight rows: the swizzle puts them in different banks.
template <int kM, int kN, int kRows>
__device__ __forceinline__ void store_scores(SharedTile<kRows, 64> tile, int row, int col,
                                             const OperandA<kM, kN>& x) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < kM / 16; ++m) {
#pragma unroll
    for (int k = 0; k < kN / 16; ++k) {
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const uint32_t chunk = tile.chunk(row + 16 * m + w % 2 * 8 + lane / 4, col + 16 * k + w / 2 * 8);
        ptx::store_shared(chunk + lane % 4 * 4, x.at[m][k][w]);
      }
    }
  }
}

// The dynamic shared memory of a CTA, as an address for ptx.
__device__ __forceinline__ uint32_t shared_memory() {
  extern __shared__ __align__(128) uint8_t memory[];
  return static_cast<uint32_t>(__cvta_generic_to_shared(memory));
}

}  // namespace tessera::attention::sm80
