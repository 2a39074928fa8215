// The ring in shared memory through which a block's weights, keys and values come, in the order in which its
// instructions need them. Some warps load, as far ahead as there is room; the others wait for an entry,
// read it, and give it back. Entries have any size: they lie one behind another, and begin again where the
// rest is short.
#pragma once

#include <cstddef>

#include "kernels/attention/decode/kernel.cuh"
#include "kernels/cuda/decode_step/args.h"
#include "kernels/cuda/decode_step/ptx.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/decode_step/instructions.h"
#include "kernels/hopper/tensor_map.h"

namespace tessera::cuda::decode_step {

using namespace tessera::decode_step;
using hopper::kPanel;

inline constexpr uint32_t kEntries = 32;  // under way, at most
inline constexpr int kGroup = 4;          // tiles of a linear instruction whose outputs are finished together
inline constexpr int kBatch = 4;          // entries of W that are in registers together
inline constexpr int kMostRows = 4;       // of A: see linear.cuh
inline constexpr int kStepColumns = 32, kSliceSteps = kChunk / kStepColumns / kWarps;  // of a warp in a chunk
inline constexpr uint32_t kLoaders = 4;                                                // warps that load
inline constexpr int kComputeThreads = kWarps * kWarp, kThreads = kComputeThreads + kLoaders * kWarp;
inline constexpr int kComputeBarrier = 1;
inline constexpr uint32_t kFlags = 65535;  // there are

// Sums of each warp for the rows of A and the outputs of a group of tiles
using Partial = float[kWarps][kMostRows][kGroup * kTileRows];
inline constexpr uint32_t kPartialRow = kGroup * kTileRows * sizeof(float);

struct Shared {
  uint64_t full[kEntries], empty[kEntries];
  uint32_t places[kLoaders][kEntries];  // where an entry lies in the ring, as each loader knows it
  alignas(16) Partial partial[2];
  alignas(16) float2 stats[2][kWarps];
  float2 angles[2][kMostHeadDim / 2];
};

// An instruction in registers: one batch of reads of constant memory, and none later
__device__ __forceinline__ Instruction fetch(const KernelArgs& a, int i) {
  uint32_t registers[sizeof(Instruction) / 4];
  Instruction s;
  memcpy(registers, &a.instructions[i], sizeof(Instruction));
#pragma unroll
  for (uint32_t& one : registers) ptx::opaque(one);
  memcpy(&s, registers, sizeof(Instruction));
  return s;
}

// What all threads of a block know of this run
struct Block {
  const KernelArgs& a;
  Shared& shared;
  uint32_t* values;
  uint32_t at, ring;  // shared addresses of `shared` and of the ring
  uint8_t* region;    // behind the ring: x, or what attention needs
  uint32_t run, first_flag;
  int start;  // the token's place

  // The flag of instruction i: never 0, and not that of the 65,534 instructions before
  __device__ __forceinline__ uint32_t flag(int i) const {
    const uint32_t own = first_flag + i;
    return own <= kFlags ? own : own - kFlags;
  }
  // The flag of values that not every run writes: it differs for a year of runs
  __device__ __forceinline__ uint32_t long_flag(int i) const { return run * a.count + i + 1; }
  // The first tile of this block; it has every gridDim.x-th
  __device__ __forceinline__ int first_tile(const Instruction& s) const {
    const int tile = static_cast<int>(blockIdx.x) - s.first;
    return tile < 0 ? tile + static_cast<int>(gridDim.x) : tile;
  }
  __device__ __forceinline__ uint32_t full(uint32_t entry) const {
    return at + offsetof(Shared, full) + entry % kEntries * sizeof(uint64_t);
  }
  __device__ __forceinline__ uint32_t empty(uint32_t entry) const {
    return at + offsetof(Shared, empty) + entry % kEntries * sizeof(uint64_t);
  }
  // Where it is written where an entry lies in the ring
  __device__ __forceinline__ uint32_t place(uint32_t entry, uint32_t loader = 0) const {
    return at + offsetof(Shared, places) + (loader * kEntries + entry % kEntries) * sizeof(uint32_t);
  }
  __device__ __forceinline__ uint32_t partial(uint32_t group) const {
    return at + offsetof(Shared, partial) + group % 2 * sizeof(Partial);
  }
  __device__ __forceinline__ uint32_t stats(uint32_t instruction) const {
    return at + offsetof(Shared, stats) + instruction % 2 * sizeof(Shared::stats[0]);
  }
  static __device__ __forceinline__ uint32_t address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
  }
  static __device__ __forceinline__ uint32_t parity(uint32_t entry) { return entry / kEntries % 2; }
};

// Bytes from row to row of a tile: 64 beyond a multiple of 128, so that eight lanes that read two rows meet
// different banks
__host__ __device__ constexpr int pitch_of(int elements) { return (2 * elements + 127) / 128 * 128 + 64; }

// The rows of W of a tile. With SwiGLU rows 0 to 3 are gates, rows 4 to 7 the same rows of up.
__device__ __forceinline__ bool is_gated(const Instruction& s) {
  return s.epilogue == FusedLinear::Epilogue::kSwiglu;
}
// The rows of W that an entry has room for, and the bytes from one to the next
__device__ __forceinline__ int slots_of(const Instruction& s) {
  return is_gated(s) ? kTileRows / 2 + s.tile_outputs : s.tile_outputs;
}
__device__ __forceinline__ int entry_pitch(const Instruction& s) { return pitch_of(min(s.C, kChunk)); }

// The tiles of keys and values of a warp: 16 keys
template <int kWidth_>
struct AttendTile {
  using Score = attention::ScaledScore;
  static constexpr int kWidth = kWidth_, kElement = 2, kWarps = tessera::decode_step::kWarps, kKeys = 16;
};

// Such a tile of keys or values in shared memory, as TMA writes it: panels of 128 bytes of each
// key, their chunks of 16 bytes with the swizzle of 128 bytes
template <int kWidth>
struct CachedRows {
  static constexpr int kKeys = AttendTile<kWidth>::kKeys, kChunks = kWidth / 8;
  static constexpr int kPanelBytes = kKeys * 2 * kPanel, kBytes = kWidth / kPanel * kPanelBytes;
  static constexpr int kAlignment = 1024;  // of the swizzle's pattern

  uint32_t base;

  __device__ __forceinline__ uint32_t chunk(int row, int c) const {
    return base + c / 8 * kPanelBytes + row * 2 * kPanel + (c % 8 ^ row % 8) * 16;
  }
};

// What a block does of an attention instruction: some units of a head of keys and values. Few keys take
// one block, for a merge costs as much as they do.
struct AttendTask {
  int keys, newest;                   // how many the token sees, and which of their rows is its own
  int head, part, parts, first, end;  // units
  bool exists;

  __device__ __forceinline__ AttendTask(const Block& b, const Instruction& s) {
    constexpr int kUnitsAlone = 2;
    keys = min(b.start + 1, s.C), newest = s.is_ring ? b.start % s.C : b.start;
    const int units = (keys + kUnitKeys - 1) / kUnitKeys, task = b.first_tile(s);
    parts = units <= kUnitsAlone ? 1 : min(units, static_cast<int>(gridDim.x) / b.a.kv_heads);
    head = task / parts;
    part = task - head * parts;
    exists = head < b.a.kv_heads;
    const int each = units / parts, rest = units - each * parts;  // the last parts have one more
    first = part * each + max(part - (parts - rest), 0);
    end = first + each + (part >= parts - rest ? 1 : 0);
  }
  __device__ __forceinline__ bool has_newest() const {
    const int unit = newest / kUnitKeys;
    return unit >= first && unit < end;
  }
};

// A warp that loads. It issues copies one after another, and a single warp would not keep up with the memory.
// So each takes every kLoaders-th row or box of an entry, and all find the same places for the entries.
class Loader {
 public:
  __device__ __forceinline__ Loader(const Block& block, uint32_t index)
      : b_(block), policy_(ptx::policy_of_once()), index_(index), lane_(threadIdx.x % kWarp) {}

  __device__ __forceinline__ void linear(const Instruction& s) {
    const int first = b_.first_tile(s);
    if (first >= s.tiles) return;
    const auto* weight = static_cast<const bf16*>(s.weight);
    if (s.norm != InstructionNorm::kNone) {  // a vector a warp
      const uint32_t bytes = 2 * s.C, vectors = s.norm == InstructionNorm::kLayerNorm ? 2 : 1,
                     to = take(static_cast<int>(vectors * bytes)), full = b_.full(next_);
      const bool mine = index_ < vectors;
      if (lane_ == 0) ptx::mbarrier_arrive_expect(full, mine ? bytes : 0);
      if (lane_ == 0 && mine)
        ptx::load_bytes(to + index_ * bytes, index_ == 0 ? s.norm_weight : s.norm_bias, bytes, full);
      ++next_;
    }
    // A lane has a row of each tile
    const uint32_t slot = index_ + lane_ * kLoaders;
    const int row = is_gated(s) ? slot % (kTileRows / 2) : slot, pitch = entry_pitch(s), slots = slots_of(s);
    const int64_t behind = is_gated(s) && slot >= kTileRows / 2 ? s.O : 0;
    for (int tile = first; tile < s.tiles; tile += gridDim.x) {
      const int outputs = min(static_cast<int>(s.tile_outputs), s.O - tile * s.tile_outputs);
      const bool mine = slot < kTileRows && row < outputs;
      const int rows = __popc(__ballot_sync(kWholeWarp, mine));
      const int64_t of_weight = behind + int64_t{tile} * s.tile_outputs + row;
      const bf16* from = weight + of_weight * s.C;
      if (s.bias && mine) ptx::prefetch_line(static_cast<const bf16*>(s.bias) + of_weight);
      for (int c = 0; c < s.C; c += kChunk) {
        const int elements = min(kChunk, s.C - c);
        const uint32_t to = take(slots * pitch) + slot * pitch, full = b_.full(next_);
        if (elements % kStepColumns != 0) {  // whole steps are multiplied
          if (mine)
            for (int i = elements; i % kStepColumns != 0; i += 8) ptx::store_shared(to + 2 * i, uint4{});
          ptx::fence_shared_for_async();  // later TMA writes there
          __syncwarp();                   // the zeros are there before the barrier says so
        }
        if (lane_ == 0) ptx::mbarrier_arrive_expect(full, rows * 2 * elements);
        __syncwarp();  // the bytes are announced before they arrive
        if (mine) ptx::load_bytes_once(to, from + c, 2 * elements, full, policy_);
        ++next_;
      }
    }
  }

  // The keys before the new token, which is no part of the cache yet. What lies behind them in a tile, or in
  // its row, is of nobody: attend() does not use it.
  template <int kWidth>
  __device__ __forceinline__ void attend(const Instruction& s) {
    using Rows = CachedRows<kWidth>;
    const AttendTask task(b_, s);
    if (!task.exists) return;
    if (s.norm_weight && index_ == 0 && lane_ < 2 * kWidth / 64)
      ptx::prefetch_line(static_cast<const bf16*>(lane_ % 2 ? s.norm_bias : s.norm_weight) + lane_ / 2 * 64);
    const CUtensorMap& map = b_.a.caches[s.cache];
    // A lane has a box of keys or of values: a tile of them, or a panel where the last one is not whole
    const uint32_t boxes = b_.a.head_dim > kPanel && b_.a.head_dim % kPanel != 0 ? 2 : 1,
                   box = index_ + lane_ * kLoaders, tile = box / 2 / boxes, panel = box / 2 % boxes,
                   of_values = box % 2;
    const bool values_first = s.bias < s.weight;
    for (int unit = task.first; unit < task.end; ++unit) {
      const uint32_t to = take(kWarps * 2 * Rows::kBytes, Rows::kAlignment), full = b_.full(next_);
      const int first = unit * kUnitKeys,
                tiles = min((task.keys - 1 - first) / AttendTile<kWidth>::kKeys + 1, kWarps);
      const bool mine = tile < tiles;
      const int count = __popc(__ballot_sync(kWholeWarp, mine));
      if (lane_ == 0) ptx::mbarrier_arrive_expect(full, count * Rows::kBytes / boxes);
      __syncwarp();  // the bytes are announced before they arrive
      if (mine)
        ptx::load_panel(to + (tile * 2 + of_values) * Rows::kBytes + panel * Rows::kPanelBytes, map, full,
                        panel * kPanel, first + tile * AttendTile<kWidth>::kKeys, task.head,
                        of_values ^ values_first);
      ++next_;
    }
  }

 private:
  // Room for entry next_: its shared address. Waits for the oldest entries to be given back.
  __device__ __forceinline__ uint32_t take(int bytes, int alignment = 128) {
    bytes = (bytes + 127) / 128 * 128;
    int at;
    for (;;) {
      const bool any = oldest_ < next_, wrapped = any && head_ <= tail_;
      if (next_ - oldest_ < kEntries) {
        at = (head_ + alignment - 1) / alignment * alignment;
        if (at + bytes <= (wrapped ? tail_ : b_.a.ring_bytes)) break;
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
        tail_ = static_cast<int>(ptx::load_shared(b_.place(oldest_, index_)) - b_.ring);
      }
    }
    head_ = at + bytes;
    if (oldest_ == next_) tail_ = at;
    const uint32_t to = b_.ring + at;
    __syncwarp();  // all have read the place of the oldest
    if (lane_ == 0) ptx::store_shared(b_.place(next_, index_), to);
    __syncwarp();
    return to;
  }

  const Block& b_;
  uint64_t policy_;
  uint32_t index_, lane_;
  uint32_t next_ = 0, oldest_ = 0;  // entries
  int head_ = 0, tail_ = 0;         // behind the newest, and of the oldest
};

// The entries as a warp that computes meets them
struct Reader {
  uint32_t entry = 0;

  __device__ __forceinline__ uint32_t wait(const Block& b) const {
    ptx::mbarrier_wait(b.full(entry), Block::parity(entry));
    return ptx::load_shared(b.place(entry));
  }
  __device__ __forceinline__ void give_back(const Block& b) {
    __syncwarp();  // all lanes have read it
    if (threadIdx.x % kWarp == 0) ptx::mbarrier_arrive(b.empty(entry));
    ++entry;
  }
};

__device__ __forceinline__ void compute_sync() { ptx::barrier_sync(kComputeBarrier, kComputeThreads); }

// Bounds a spin wait: a run that waits for a second waits for a value that nobody writes, and is ended.
struct SpinLimit {
  uint32_t left = 1u << 23;
  __device__ __forceinline__ void count() {
    if (--left == 0) __trap();
  }
};

}  // namespace tessera::cuda::decode_step
