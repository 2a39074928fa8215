// A warp's own ring of tiles of keys and values in shared memory, filled by cp.async: no other warp waits for
// it. Elements lie in chunks of 16 bytes; chunk c of row r at place c ^ swizzle(r), so that eight rows that
// are read at once at one chunk lie in eight different groups of banks.
#pragma once

#include <type_traits>

#include "kernels/attention/blocks.h"
#include "kernels/attention/common/view.h"
#include "kernels/attention/decode/shape.h"
#include "kernels/attention/sm80/ptx.cuh"

namespace tessera::attention::decode {

// Tile::kKeys rows of Tile::kWidth elements
template <class Tile>
struct SharedRows {
  static constexpr int kChunks = Tile::kWidth * Tile::kElement / 16, kRowBytes = 16 * kChunks;
  static constexpr int kBytes = Tile::kKeys * kRowBytes;
  static_assert(kChunks % 4 == 0);

  uint32_t base;

  static __device__ __forceinline__ int swizzle(int row) {
    if constexpr (Tile::kElement == 4) return row * (32 / Tile::kKeys) % 8;  // 32 / kKeys lanes read a row
    return kChunks % 8 == 0 ? row % 8 : row / 2 % 4;  // with 12 chunks, rows already alternate by four
  }
  __device__ __forceinline__ uint32_t chunk(int row, int c) const {
    return base + row * kRowBytes + (c ^ swizzle(row)) * 16;
  }
};

// The tiles that a warp takes of one head of a sequence, kUnitKeys keys apart
template <class Tile, class T>
class Ring {
 public:
  using Rows = SharedRows<Tile>;
  static constexpr int kSlots = Tile::kSlots;
  static constexpr int kBytes = kSlots * 2 * Rows::kBytes;

  // `shared` is this warp's memory; the first tile begins with key `first`. Rows from key `end` on become
  // zeros, and so do columns behind those of a head.
  __device__ __forceinline__ Ring(uint32_t shared, View<const T> k, View<const T> v, int head_dim, int first,
                                  int end)
      : shared_(shared),
        k_(k.row_begin(first + row()) + chunk() * kPerChunk),
        v_(v.row_begin(first + row()) + chunk() * kPerChunk),
        k_row_(k.row),
        v_row_(v.row),
        rows_(end - first),
        chunks_(head_dim / kPerChunk) {}

  // Starts copying the next tile, if there is one, and closes a group of cp.async.
  __device__ __forceinline__ void start(int slot) {
    if (rows_ > 0) {
      copy(k_tile(slot), k_, k_row_);
      copy(v_tile(slot), v_, v_row_);
    }
    k_ += kUnitKeys<Tile> * k_row_;
    v_ += kUnitKeys<Tile> * v_row_;
    rows_ -= kUnitKeys<Tile>;
    ptx::cp_async_commit();
  }
  __device__ __forceinline__ Rows k_tile(int slot) const { return {shared_ + slot * 2 * Rows::kBytes}; }
  __device__ __forceinline__ Rows v_tile(int slot) const { return {k_tile(slot).base + Rows::kBytes}; }

 protected:
  // A warp copies kRowsAtOnce rows at once, or a row in kParts.
  static constexpr int kRowsAtOnce = Rows::kChunks < 32 ? 32 / Rows::kChunks : 1;
  static constexpr int kParts = Rows::kChunks < 32 ? 1 : Rows::kChunks / 32;
  static constexpr int kPerChunk = 16 / Tile::kElement;
  static_assert(Tile::kKeys % kRowsAtOnce == 0 && sizeof(T) == Tile::kElement);

  static __device__ __forceinline__ int row() {  // with 12 chunks, some lanes have none
    return static_cast<int>(threadIdx.x) % 32 / Rows::kChunks;
  }
  static __device__ __forceinline__ int chunk() { return static_cast<int>(threadIdx.x) % 32 % Rows::kChunks; }
  __device__ __forceinline__ void copy(Rows to, const T* from, int64_t stride) const {
    if (row() >= kRowsAtOnce) return;
#pragma unroll
    for (int r = 0; r < Tile::kKeys; r += kRowsAtOnce, from += kRowsAtOnce * stride) {
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        ptx::cp_async_16(to.chunk(row() + r, chunk() + 32 * part), from + 32 * part * kPerChunk,
                         row() + r < rows_ && chunk() + 32 * part < chunks_);
    }
  }

  uint32_t shared_;
  const T *k_, *v_;  // where this lane reads of the next tile
  int64_t k_row_, v_row_;
  int rows_;    // keys from the begin of the next tile to the end
  int chunks_;  // of a head
};

// With sparse blocks: keys are counted by their places in the blocks of a list; `rows` has the row of each.
template <class Tile, class T>
class ListedRing : public Ring<Tile, T> {
 public:
  TileList rows;  // set before start()

  __device__ __forceinline__ ListedRing(uint32_t shared, View<const T> k, View<const T> v, int head_dim,
                                        int first, int end)
      : Ring<Tile, T>(shared, k, v, head_dim, 0, end - first), end_(end) {}
  __device__ __forceinline__ void start(int slot) {
    if (this->rows_ > 0) {
      const int64_t row = rows[end_ - this->rows_];
      this->copy(this->k_tile(slot), this->k_ + row * this->k_row_, this->k_row_);
      this->copy(this->v_tile(slot), this->v_ + row * this->v_row_, this->v_row_);
    }
    this->rows_ -= kUnitKeys<Tile>;
    ptx::cp_async_commit();
  }

 private:
  int end_;
};
template <class Tile, class T>
using RingOf = std::conditional_t<Tile::kListed, ListedRing<Tile, T>, Ring<Tile, T>>;

}  // namespace tessera::attention::decode
