// Tile shapes of the sm_80 kernels.
#pragma once

namespace tessera::attention {
struct ScaledScore;  // common/score.cuh
struct AlibiScore;
struct CappedScore;
}  // namespace tessera::attention

namespace tessera::attention::sm80 {

struct TileBase {
  using Score = ScaledScore;
  static constexpr bool kWhole = true;  // heads are as wide as the tile
};

// The width of the tiles that hold heads of this many columns
constexpr int tile_width(int head_dim) { return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256; }

// A tile for heads that are narrower than the tile: its kernels check where a head ends. Two kernels have no
// register left for this check, and take less at a time.
template <class Tile>
struct Narrow : Tile {
  static constexpr bool kWhole = false;
};

// A tile for kernels whose scores have a bias
template <class Tile>
struct Biased : Tile {
  using Score = AlibiScore;
};

// A tile for kernels whose scores have a cap
template <class Tile>
struct Capped : Tile {
  using Score = CappedScore;
};

// Forward: a warp owns 32 queries, so that each fragment of K or V that it reads feeds two mma.
template <int kHeadDim_>
struct ForwardTile : TileBase {
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kBlockQ = 128, kBlockK = kHeadDim == 64 ? 128 : 64;
  static constexpr int kWarps = 4;
  static constexpr int kCtasPerSm = 2;  // as many as 255 registers a thread allow
};

template <>
struct Narrow<ForwardTile<128>> : ForwardTile<128> {
  static constexpr bool kWhole = false;
  static constexpr int kBlockK = 48;
};

// A tile for dropout: it takes less at a time than Narrow, since random numbers need registers.
template <class Tile>
struct Dropping : Narrow<Tile> {};

template <>
struct Dropping<ForwardTile<64>> : Narrow<ForwardTile<64>> {
  static constexpr int kBlockK = 64;
};
template <>
struct Dropping<ForwardTile<128>> : Narrow<ForwardTile<128>> {
  static constexpr int kBlockK = 32;
};

// A tile for any mask: it takes less at a time, since the bounds of what is seen need registers.
template <class Tile>
struct Masked : Narrow<Tile> {};

template <>
struct Masked<ForwardTile<64>> : Narrow<ForwardTile<64>> {
  static constexpr int kBlockK = 64;
};

// A tile for sparse blocks, which consist of whole tiles
template <class Tile>
struct Listed : Masked<Tile> {};

template <>
struct Listed<ForwardTile<128>> : Masked<ForwardTile<128>> {
  static constexpr int kBlockK = 32;
};

// With 16 queries a warp, O takes 128 registers by itself. One kernel serves all heads of this width.
template <>
struct ForwardTile<256> : TileBase {
  static constexpr int kHeadDim = 256;
  static constexpr bool kWhole = false;
  static constexpr int kBlockQ = 64, kBlockK = 32;
  static constexpr int kWarps = 4;
  static constexpr int kCtasPerSm = 2;
};

// Backward: a warp owns kKeysPerWarp keys, whose dK and dV are in registers. A step takes kBlockQ queries,
// kPassQ of them at a time: the scores of a pass and their gradients take kKeysPerWarp kPassQ / 16 registers.
// kSplitD warps share keys: each computes the scores, and has kHeadDim / kSplitD columns of dK and dV.
struct BackwardTileBase : TileBase {
  static constexpr int kSplitD = 1;
};
template <int kHeadDim_>
struct BackwardTile;

template <>
struct BackwardTile<64> : BackwardTileBase {
  static constexpr int kHeadDim = 64;
  static constexpr int kBlockK = 128, kBlockQ = 64;
  static constexpr int kWarps = 4, kKeysPerWarp = kBlockK / kWarps, kPassQ = 32;
  static constexpr int kCtasPerSm = 2;
};

template <>
struct Narrow<BackwardTile<64>> : BackwardTile<64> {
  static constexpr bool kWhole = false;
  static constexpr int kPassQ = 16;
};

template <>
struct BackwardTile<128> : BackwardTileBase {
  static constexpr int kHeadDim = 128;
  static constexpr int kBlockK = 128, kBlockQ = 64;
  static constexpr int kWarps = 8, kKeysPerWarp = kBlockK / kWarps, kPassQ = 64;
  static constexpr int kCtasPerSm = 1;
};

template <>
struct Dropping<BackwardTile<128>> : Narrow<BackwardTile<128>> {
  static constexpr int kPassQ = 32;
};

// For chips with 99 KB of shared memory a CTA (compute capability 8.6, 8.9, 12.0).
struct SmallBackwardTile128 : BackwardTileBase {
  static constexpr int kHeadDim = 128;
  static constexpr int kBlockK = 64, kBlockQ = 32;
  static constexpr int kWarps = 4, kKeysPerWarp = kBlockK / kWarps, kPassQ = 32;
  static constexpr int kCtasPerSm = 1;
};

// A warp has 16 keys: dK and dV of all 256 columns would take every register, so two warps share keys.
template <>
struct BackwardTile<256> : BackwardTileBase {
  static constexpr int kHeadDim = 256;
  static constexpr bool kWhole = false;
  static constexpr int kBlockK = 64, kBlockQ = 32;
  static constexpr int kWarps = 8, kSplitD = 2, kKeysPerWarp = kBlockK * kSplitD / kWarps, kPassQ = 32;
  static constexpr int kCtasPerSm = 1;
};
struct SmallBackwardTile256 : BackwardTileBase {
  static constexpr int kHeadDim = 256;
  static constexpr bool kWhole = false;
  static constexpr int kBlockK = 32, kBlockQ = 16;
  static constexpr int kWarps = 4, kSplitD = 2, kKeysPerWarp = kBlockK * kSplitD / kWarps, kPassQ = 16;
  static constexpr int kCtasPerSm = 1;
};

}  // namespace tessera::attention::sm80
