// Decode attention over a small cache (kernels/attention/small_cache.h): tile sizes, and how the work is
// shared out. Plain C++.
#pragma once

#include "kernels/attention/decode/shape.h"
#include "kernels/attention/family.h"
#include "kernels/attention/small_cache.h"

namespace tessera::attention::decode {

// A launcher for each format
AttnStatus decode_fp8(const SmallDecode& d, CUstream_st* stream);
AttnStatus decode_int8(const SmallDecode& d, CUstream_st* stream);
AttnStatus decode_int4(const SmallDecode& d, CUstream_st* stream);

// Pairs of bf16 with which kernels turn integer codes into bf16. They are arguments of the kernel, not
// constants: a LOP3 takes one constant, which is the mask. With two constants the compiler would emit two
// LOP3.
struct CodeConstants {
  uint32_t plus_128 = 0x43004300, minus_256 = 0xc380c380;
};

// A warp takes one tile of codes at a time, and the newest tokens 16 keys at a time, as Bf16Tile does. Its
// ring has kSlots slots, each with room for either.
// kGeneral: for calls with sinks, a bias or a cap
template <CacheDtype kDtype, int kWidth_, bool kGeneral_>
struct SmallTile {
  static constexpr bool kGeneral = kGeneral_, kListed = false;
  using Score = ScaledScore;
  static constexpr CacheFormat kFormat{.dtype = kDtype, .head_dim = kWidth_};
  static constexpr int kWidth = kWidth_, kElement = 2, kKeys = 16;  // of the newest tokens
  static constexpr int kWarps = kWidth == 256 ? 2 : 4, kSlots = kWidth == 64 ? 3 : 2;
  // The CTAs that run on a multiprocessor of Hopper at a time, as shared memory allows; a bias needs more
  // registers
  static constexpr int kCtas = (kWidth == 64 ? 4 : 3) - (kGeneral && kWidth < 256 ? 1 : 0);
  static constexpr int kSlotBytes = (kFormat.key_scale_words() + kFormat.tile_words()) * 4;
  static_assert(kSlotBytes >= 2 * kKeys * kWidth * kElement);
};
constexpr int small_tile_width(int head_dim) { return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256; }
constexpr int small_tile_warps(int head_dim) { return small_tile_width(head_dim) == 256 ? 2 : 4; }

inline constexpr int64_t kMostSmallCtas = 576;  // in a launch: up to four on each multiprocessor

// A unit is a tile of codes for each warp of a CTA; the last unit of a row is its newest tokens.
TESSERA_HOST_DEVICE constexpr int small_units_of(int64_t keys, int tiles_of_group, int warps) {
  const int64_t tiles = CacheFormat::groups_of(keys) * tiles_of_group;
  return keys > 0 ? static_cast<int>((tiles + warps - 1) / warps + 1) : 0;
}
inline int64_t most_small_units(const AttnDecodeProblem& p, CacheDtype dtype) {
  const CacheFormat format{.dtype = dtype, .head_dim = p.head_dim};
  return p.batch * p.kv_heads * turns_of(p.heads / p.kv_heads) *
         small_units_of(p.capacity, format.tiles(), small_tile_warps(p.head_dim));
}
inline Workspace small_workspace(void* memory, const AttnDecodeProblem& p, CacheDtype dtype) {
  return {memory, p, std::min(kMostSmallCtas, most_small_units(p, dtype))};
}

}  // namespace tessera::attention::decode
