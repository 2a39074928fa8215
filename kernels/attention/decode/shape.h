// The tile sizes of the decode kernels, and their workspace. Plain C++.
#pragma once

#include <algorithm>

#include "kernels/attention/workspace.h"

namespace tessera::attention {
struct ScaledScore;  // common/score.cuh
}

namespace tessera::attention::decode {

// A CTA has kWarps warps. Each has a ring of kSlots tiles of kKeys keys and values, padded to kWidth columns.
// All tiles of a CTA fit the shared memory that every chip from compute capability 8.0 on has for one.
// kGeneral: for calls with sinks, a bias or both. kListed: for sparse blocks, which are whole tiles
template <int kWidth_, bool kGeneral_ = false, bool kListed_ = false>
struct Bf16Tile {
  static constexpr bool kGeneral = kGeneral_, kListed = kListed_;
  using Score = ScaledScore;
  static constexpr int kWidth = kWidth_, kElement = 2;  // bytes
  static constexpr int kWarps = kWidth == 256 ? 2 : 4, kKeys = 16;
  static constexpr int kSlots = kWidth == 64 ? 6 : kWidth == 96 ? 4 : 3;
};
template <int kWidth_, bool kGeneral_ = false, bool kListed_ = false>
struct F32Tile {
  static constexpr bool kGeneral = kGeneral_, kListed = kListed_;
  using Score = ScaledScore;
  static constexpr int kWidth = kWidth_, kElement = 4;
  static constexpr int kWarps = kWidth == 64 ? 4 : 2, kKeys = kWidth == 256 ? 8 : 16;
  static constexpr int kSlots = 2;
};

// The width of the tiles that hold heads of this many columns
constexpr int tile_width(AttnDtype dtype, int head_dim) {
  if (head_dim <= 64) return 64;
  if (head_dim <= 96 && dtype == ATTN_BF16) return 96;
  return head_dim <= 128 ? 128 : 256;
}

// A unit is what the warps of a CTA take together. CTAs share out whole units.
template <class Tile>
inline constexpr int kUnitKeys = Tile::kWarps* Tile::kKeys;
constexpr int unit_keys(AttnDtype dtype, int head_dim) {
  const int width = tile_width(dtype, head_dim);
  if (dtype == ATTN_BF16) return width == 256 ? kUnitKeys<Bf16Tile<256>> : kUnitKeys<Bf16Tile<128>>;
  return width == 64    ? kUnitKeys<F32Tile<64>>
         : width == 128 ? kUnitKeys<F32Tile<128>>
                        : kUnitKeys<F32Tile<256>>;
}

// The query heads of a group that share what is loaded: the columns of an mma. A larger group needs several
// turns.
inline constexpr int kHeadsAtOnce = 8;
constexpr int64_t turns_of(int64_t group) { return (group + kHeadsAtOnce - 1) / kHeadsAtOnce; }

inline constexpr int64_t kMostCtas = 384;  // in a launch: two or three on each multiprocessor

// The number of units of a problem whose caches are full
inline int64_t most_units(const AttnDecodeProblem& p) {
  const int64_t keys = unit_keys(p.dtype, p.head_dim);
  return p.batch * p.kv_heads * turns_of(p.heads / p.kv_heads) * ((p.capacity + keys - 1) / keys);
}

// The units of a CTA are neighbours in the order of sequences, heads and keys. So it shares at most two heads
// with other CTAs, one at each end, and has a part for each of them.
struct Workspace {
  static constexpr int kPartsOfCta = 2;

  Workspace(void* memory, const AttnDecodeProblem& p)
      : Workspace(memory, p, std::min(kMostCtas, most_units(p))) {}
  Workspace(void* memory, const AttnDecodeProblem& p, int64_t ctas) {
    Carver carver(memory);
    const int64_t heads = std::min<int64_t>(p.heads / p.kv_heads, kHeadsAtOnce);
    const auto rows = static_cast<size_t>(ctas * kPartsOfCta * heads);
    out = carver.take<float>(rows * static_cast<size_t>(p.head_dim));
    lse = carver.take<float>(rows);
    bytes = carver.used();
  }

  float* out;  // [part, heads, head_dim]
  float* lse;  // [part, heads]: log2 of the sum of 2^(c s) over the keys of the part; -inf: none
  size_t bytes;
};

}  // namespace tessera::attention::decode
