// Which keys a CTA reads: an equal share of the keys that there are, whatever their sequences and heads.
//
// The units of all sequences stand in one line: sequence by sequence, head by head, from the first key on.
// CTA c takes `share` of them, from c share on. Sequences tell their lengths when the kernel runs, so the
// shares grow with them, and a CTA behind the last unit has nothing to do.
//
// With sparse blocks a query sees the keys of the blocks in its block's list, up to itself. These keys are
// numbered in the order of the list, and units are counted in these numbers instead of rows of the cache.
#pragma once

#include <type_traits>

#include "kernels/attention/blocks.h"
#include "kernels/attention/decode/shape.h"
#include "kernels/attention/mask.h"

namespace tessera::attention::decode {

inline constexpr unsigned kWholeWarp = ~0u;

// Own: a WorkOf that knows the keys and the units of sequences by itself; void: they are plain.
template <class Own = void>
struct WorkOf {
  const int32_t* starts;  // [batch]
  int batch, capacity;
  int rows;       // of a sequence: its heads of keys and values, times the turns of a group
  int unit_keys;  // keys of a unit
  int ctas;

  __device__ __forceinline__ int keys_of(int sequence) const {
    if constexpr (!std::is_void_v<Own>)
      return static_cast<const Own*>(this)->own_keys_of(sequence);
    else
      return plain_keys_of(sequence);
  }
  __device__ __forceinline__ int units_of(int keys) const {
    if constexpr (!std::is_void_v<Own>)
      return static_cast<const Own*>(this)->own_units_of(keys);
    else
      return plain_units_of(keys);
  }
  __device__ __forceinline__ int plain_keys_of(int sequence) const {
    return max(min(starts[sequence], capacity - 1) + 1, 0);
  }
  __device__ __forceinline__ int plain_units_of(int keys) const { return (keys + unit_keys - 1) / unit_keys; }

  // Units of all rows of the sequences before `end`. All lanes of a warp call it together, here and below.
  __device__ __forceinline__ int units_before(int end) const {
    int units = 0;
    for (int b = threadIdx.x % 32; b < end; b += 32) units += units_of(keys_of(b));
    return static_cast<int>(__reduce_add_sync(kWholeWarp, static_cast<unsigned>(units))) * rows;
  }
  __device__ __forceinline__ int share_of(int units) const { return max(1, (units + ctas - 1) / ctas); }

  // The sequence of a unit, and the first unit of that sequence
  struct Place {
    int sequence, first;
  };
  __device__ __forceinline__ Place place_of(int unit) const {
    if (batch == 1) return {0, 0};
    const int lane = threadIdx.x % 32;
    int before = 0;
    for (int block = 0;; block += 32) {
      const int own = block + lane < batch ? units_of(keys_of(block + lane)) * rows : 0;
      int end = own + (lane == 0 ? before : 0);
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(kWholeWarp, end, step);
        if (lane >= step) end += other;
      }
      const unsigned behind = __ballot_sync(kWholeWarp, end > unit);
      if (behind != 0) {
        const int found = __ffs(static_cast<int>(behind)) - 1;
        return {block + found, __shfl_sync(kWholeWarp, end - own, found)};
      }
      before = __shfl_sync(kWholeWarp, end, 31);
    }
  }
};

using Work = WorkOf<>;

struct ListedWork : WorkOf<ListedWork> {
  Blocks blocks;
  int shift;  // a block has 1 << shift keys

  // The rows of the cache by place
  __device__ __forceinline__ TileList rows_of(int sequence) const {
    return {blocks.keys_of(0, start_of(sequence) >> shift), shift};
  }
  __device__ __forceinline__ int own_keys_of(int sequence) const {
    const int start = start_of(sequence);
    return start < 0 ? 0 : rows_of(sequence).place_from(start + 1);
  }
  __device__ __forceinline__ int own_units_of(int keys) const { return plain_units_of(keys); }

 private:
  __device__ __forceinline__ int start_of(int sequence) const {
    return min(this->starts[sequence], this->capacity - 1);
  }
};

// The CTAs that have a part of a row of units
struct Sharers {
  int first, last;
  __device__ __forceinline__ Sharers(Span units, int share)
      : first(units.begin / share), last((units.end - 1) / share) {}
  __device__ __forceinline__ bool one() const { return first == last; }
  // The first of them ends with the row's first units, which is its second part; others begin with it.
  __device__ __forceinline__ int part_of(int cta) const {
    return Workspace::kPartsOfCta * cta + (cta == first ? 1 : 0);
  }
};

}  // namespace tessera::attention::decode
