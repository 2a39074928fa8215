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

// A tile for heads narrower than it is: kernels ask where a head ends. Two of them have no register left to
// ask with, and take less at a time.
template <class Tile>
struct Narrow : Tile {
  static constexpr bool kWhole = false;
};

// A tile of kernels whose scores have a bias
template <class Tile>
struct Biased : Tile {
  using Score = AlibiScore;
};

// And of those whose scores have a cap
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

// A tile for dropout, whose random numbers need registers too: less at a time than with Narrow.
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

// A tile for any mask, which needs registers to know what is seen
template <class Tile>
struct Masked : Narrow<Tile> {};

template <>
struct Masked<ForwardTile<64>> : Narrow<ForwardTile<64>> {
  static constexpr int kBlockK = 64;
};

// A tile for sparse blocks, which are whole tiles
template <class Tile>
struct Listed : Masked<Tile> {};

template <>
struct Listed<ForwardTile<128>> : Masked<ForwardTile<128>> {
  static constexpr int kBlockK = 32;
};

// With 16 queries a warp O alone fills 128 registers. One kernel serves all heads of this width.
template <>
struct ForwardTile<256> : TileBase {
  static constexpr int kHeadDim = 256;
  static constexpr bool kWhole = false;
  static constexpr int kBlockQ = 64, kBlockK = 32;
  static constexpr int kWarps = 4;
  static constexpr int kCtasPerSm = 2;
};

// Backward: a warp owns kKeysPerWarp keys, with dK and dV in registers, and takes kBlockQ queries a step,
// kPassQ of them at a time: the scores and their gradients of a pass fill kKeysPerWarp kPassQ / 16 registers.
// kSplitD warps share keys: each has kHeadDim / kSplitD columns of their dK and dV, and computes the scores.
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

// 16 keys a warp: dK and dV of all 256 columns would fill every register.
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
