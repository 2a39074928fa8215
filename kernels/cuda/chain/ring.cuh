// The ring in shared memory through which a block's weights, keys and values come, in the order in which its
// stages need them. One warp loads, as far ahead as there is room; the others wait for an entry, read it, and
// give it back. Entries have any size: they lie one behind another, and begin again where the rest is short.
#pragma once

#include "kernels/attention/decode/kernel.cuh"
#include "kernels/chain/stages.h"
#include "kernels/cuda/chain/ptx.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"

namespace tessera::cuda::chain {

namespace ptx = attention::ptx;
using namespace tessera::chain;

inline constexpr int kEntries = 32;  // under way, at most
inline constexpr int kGroup = 4;     // tiles of a linear stage whose outputs are finished together
inline constexpr int kComputeThreads = kWarps * kWarp, kThreads = kComputeThreads + kWarp;
inline constexpr int kComputeBarrier = 1;

struct Shared {
  uint64_t full[kEntries], empty[kEntries];
  uint32_t places[kEntries];  // where an entry lies in the ring
  float partial[2][kGroup][kWarps][kTileRows];
  float2 stats[kWarps];
  float2 angles[kMostHeadDim / 2];
};

// A stage in registers: one batch of reads of constant memory, and none later
__device__ __forceinline__ Stage fetch(const Args& a, int i) {
  uint32_t words[sizeof(Stage) / 4];
  Stage s;
  memcpy(words, &a.stages[i], sizeof(Stage));
#pragma unroll
  for (uint32_t& word : words) ptx::opaque(word);
  memcpy(&s, words, sizeof(Stage));
  return s;
}

// What all threads of a block know of this run
struct Block {
  const Args& a;
  Shared& shared;
  uint32_t ring;    // shared address
  uint8_t* region;  // behind the ring: x, or what attention needs
  uint32_t run;
  int start;  // the token's place

  // Words of stage i: never 0, and not those of the 65,534 stages before
  __device__ __forceinline__ uint32_t stamp(int i) const { return (run * a.count + i) % 65535 + 1; }
  // Of words that not every run writes: they differ for a year of runs
  __device__ __forceinline__ uint32_t long_stamp(int i) const { return run * a.count + i + 1; }
  // The first tile of this block; it has every gridDim.x-th
  __device__ __forceinline__ int first_tile(const Stage& s) const {
    const int tile = static_cast<int>(blockIdx.x) - s.first;
    return tile < 0 ? tile + static_cast<int>(gridDim.x) : tile;
  }
  __device__ __forceinline__ uint32_t full(int entry) const {
    return address(shared.full + entry % kEntries);
  }
  __device__ __forceinline__ uint32_t empty(int entry) const {
    return address(shared.empty + entry % kEntries);
  }
  static __device__ __forceinline__ uint32_t address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
  }
  static __device__ __forceinline__ uint32_t parity(int entry) { return entry / kEntries % 2; }
};

// Bytes from row to row of a tile: 64 beyond a multiple of 128, so that eight lanes that read two rows meet
// different banks
__host__ __device__ constexpr int pitch_of(int elements) { return (2 * elements + 127) / 128 * 128 + 64; }

// The rows of W of a tile. With SwiGLU rows 0 to 3 are gates, rows 4 to 7 the same rows of up.
struct TileRows {
  int outputs;  // that exist
  bool gated;

  __device__ __forceinline__ TileRows(const Stage& s, int tile)
      : outputs(min(static_cast<int>(s.tile_outputs), s.O - tile * s.tile_outputs)),
        gated(s.epilogue == FusedLinear::Epilogue::kSwiglu) {}
  __device__ __forceinline__ bool has(int row) const { return (gated ? row % 4 : row) < outputs; }
  __device__ __forceinline__ int count() const { return gated ? 2 * outputs : outputs; }
  __device__ __forceinline__ int slots() const { return gated ? 4 + outputs : outputs; }
  __device__ __forceinline__ int64_t of_weight(const Stage& s, int tile, int row) const {
    return int64_t{tile} * s.tile_outputs + (gated ? row % 4 + row / 4 * int64_t{s.O} : row);
  }
};

// The tiles of keys and values of a warp: 16 keys
template <int kWidth_>
struct AttendTile {
  static constexpr int kWidth = kWidth_, kElement = 2, kWarps = tessera::chain::kWarps, kKeys = 16;
};

// What a block does of an attention stage: some units of a head of keys and values. Few keys take one block,
// for a merge costs as much as they do.
struct AttendTask {
  int head, part, parts, first, end;  // units
  bool exists;

  __device__ __forceinline__ AttendTask(const Block& b, const Stage& s) {
    constexpr int kUnitsAlone = 4;
    const int units = (b.start + kUnitKeys) / kUnitKeys, task = b.first_tile(s);
    parts = units <= kUnitsAlone ? 1 : min(units, static_cast<int>(gridDim.x) / b.a.kv_heads);
    head = task / parts;
    part = task - head * parts;
    exists = head < b.a.kv_heads;
    const int each = units / parts, rest = units - each * parts;  // the last parts have one more
    first = part * each + max(part - (parts - rest), 0);
    end = first + each + (part >= parts - rest ? 1 : 0);
  }
  __device__ __forceinline__ bool last() const { return part == parts - 1; }  // it has the new token
};

// The warp that loads
class Loader {
 public:
  __device__ __forceinline__ explicit Loader(const Block& block)
      : b_(block), policy_(ptx::policy_of_once()), lane_(threadIdx.x % kWarp) {}

  __device__ __forceinline__ void linear(const Stage& s) {
    const int first = b_.first_tile(s);
    if (first >= s.tiles) return;
    const auto* weight = static_cast<const bf16*>(s.weight);
    if (s.norm != StageNorm::kNone) {
      const uint32_t bytes = 2 * s.C, vectors = s.norm == StageNorm::kLayerNorm ? 2 : 1,
                     to = take(static_cast<int>(vectors * bytes)), full = b_.full(next_);
      if (lane_ == 0) {
        ptx::mbarrier_arrive_expect(full, vectors * bytes);
        ptx::load_bytes(to, s.norm_weight, bytes, full);
        if (vectors == 2) ptx::load_bytes(to + bytes, s.norm_bias, bytes, full);
      }
      ++next_;
    }
    for (int tile = first; tile < s.tiles; tile += gridDim.x) {
      const TileRows rows(s, tile);
      const bool mine = lane_ < kTileRows && rows.has(lane_);
      const bf16* from = weight + rows.of_weight(s, tile, lane_) * s.C;
      if (s.bias && mine)
        ptx::prefetch_line(static_cast<const bf16*>(s.bias) + rows.of_weight(s, tile, lane_));
      for (int c = 0; c < s.C; c += kChunk) {
        const int elements = min(kChunk, s.C - c), pitch = pitch_of(elements);
        const uint32_t to = take(rows.slots() * pitch), full = b_.full(next_);
        if (lane_ == 0) ptx::mbarrier_arrive_expect(full, rows.count() * 2 * elements);
        __syncwarp();  // the bytes are announced before they come
        if (mine) ptx::load_bytes_once(to + lane_ * pitch, from + c, 2 * elements, full, policy_);
        ++next_;
      }
    }
  }

  // The keys before the new token, which is no part of the cache yet: zeros from there on
  template <int kWidth>
  __device__ __forceinline__ void attend(const Stage& s) {
    using Rows = attention::decode::SharedRows<AttendTile<kWidth>>;
    const AttendTask task(b_, s);
    if (!task.exists) return;
    if (s.norm_weight && lane_ < 2 * kWidth / 64)
      ptx::prefetch_line(static_cast<const bf16*>(lane_ % 2 ? s.norm_bias : s.norm_weight) + lane_ / 2 * 64);
    const int D = b_.a.head_dim;
    const int64_t row = int64_t{b_.a.kv_heads} * D;
    const auto *k = static_cast<const bf16*>(s.weight) + task.head * D,
               *v = static_cast<const bf16*>(s.bias) + task.head * D;
    constexpr int kRowsAtOnce = kWarp / Rows::kChunks;
    const int chunk = lane_ % Rows::kChunks, first_row = lane_ / Rows::kChunks;
    for (int unit = task.first; unit < task.end; ++unit) {
      const uint32_t to = take(kWarps * 2 * Rows::kBytes);
#pragma unroll 1
      for (int warp = 0; warp < kWarps; ++warp) {
        const int first = (unit * kWarps + warp) * AttendTile<kWidth>::kKeys;
        if (first > b_.start) break;
        const Rows keys{to + warp * 2 * Rows::kBytes}, values{keys.base + Rows::kBytes};
#pragma unroll
        for (int r = 0; r < AttendTile<kWidth>::kKeys; r += kRowsAtOnce) {
          const int key = first + first_row + r;
          const bool there = key < b_.start && chunk * 8 < D;
          const int64_t at = there ? key * row + chunk * 8 : 0;
          ptx::cp_async_16(keys.chunk(first_row + r, chunk), k + at, there);
          ptx::cp_async_16(values.chunk(first_row + r, chunk), v + at, there);
        }
      }
      ptx::cp_async_arrive(b_.full(next_));
      __syncwarp();  // all lanes' copies count before the phase can end
      if (lane_ == 0) ptx::mbarrier_arrive(b_.full(next_));
      ++next_;
    }
  }

 private:
  // Room for entry next_: its shared address. Waits for the oldest entries to be given back.
  __device__ __forceinline__ uint32_t take(int bytes) {
    bytes = (bytes + 127) / 128 * 128;
    int at;
    for (;;) {
      const bool any = oldest_ < next_, wrapped = any && head_ <= tail_;
      if (next_ - oldest_ < kEntries) {
        if (head_ + bytes <= (wrapped ? tail_ : b_.a.ring_bytes)) {
          at = head_;
          break;
        }
        if (!wrapped && bytes <= tail_) {
          at = 0;
          break;
        }
      }
      ptx::mbarrier_wait(b_.empty(oldest_), Block::parity(oldest_));
      ++oldest_;
      if (oldest_ == next_) {
        head_ = tail_ = 0;
      } else {
        tail_ = static_cast<int>(b_.shared.places[oldest_ % kEntries] - b_.ring);
      }
    }
    head_ = at + bytes;
    if (oldest_ == next_) tail_ = at;
    const uint32_t to = b_.ring + at;
    __syncwarp();  // all have read the place of the oldest
    if (lane_ == 0) b_.shared.places[next_ % kEntries] = to;
    __syncwarp();
    return to;
  }

  const Block& b_;
  uint64_t policy_;
  int lane_;
  int next_ = 0, oldest_ = 0;  // entries
  int head_ = 0, tail_ = 0;    // behind the newest, and of the oldest
};

// The entries as a warp that computes meets them
struct Reader {
  int entry = 0;

  __device__ __forceinline__ uint32_t wait(const Block& b) const {
    ptx::mbarrier_wait(b.full(entry), Block::parity(entry));
    return b.shared.places[entry % kEntries];
  }
  __device__ __forceinline__ void give_back(const Block& b) {
    __syncwarp();  // all lanes have read it
    if (threadIdx.x % kWarp == 0) ptx::mbarrier_arrive(b.empty(entry));
    ++entry;
  }
};

__device__ __forceinline__ void compute_sync() { ptx::barrier_sync(kComputeBarrier, kComputeThreads); }

// Waits for words that another block writes. A run that waits for a second has lost a word: better none.
struct Patience {
  uint32_t left = 1u << 23;
  __device__ __forceinline__ void spend() {
    if (--left == 0) __trap();
  }
};

}  // namespace tessera::cuda::chain
