// Tile shapes of the sm_80 kernels.
#pragma once

namespace tessera::attention::sm80 {

// Forward: a warp owns 32 queries, so that each fragment of K or V that it reads feeds two mma.
template <int kHeadDim_>
struct ForwardTile {
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kBlockQ = 128, kBlockK = kHeadDim == 64 ? 128 : 64;
  static constexpr int kWarps = 4;
  static constexpr int kCtasPerSm = 2;  // as many as 255 registers a thread allow
};

// Backward: a warp owns kKeysPerWarp keys, with dK and dV in registers, and takes kBlockQ queries a step,
// kPassQ of them at a time: the scores and their gradients of a pass fill kKeysPerWarp kPassQ / 16 registers.
template <int kHeadDim_>
struct BackwardTile;

template <>
struct BackwardTile<64> {
  static constexpr int kHeadDim = 64;
  static constexpr int kBlockK = 128, kBlockQ = 64;
  static constexpr int kWarps = 4, kKeysPerWarp = kBlockK / kWarps, kPassQ = 32;
  static constexpr int kCtasPerSm = 2;
};

template <>
struct BackwardTile<128> {
  static constexpr int kHeadDim = 128;
  static constexpr int kBlockK = 128, kBlockQ = 64;
  static constexpr int kWarps = 8, kKeysPerWarp = kBlockK / kWarps, kPassQ = 64;
  static constexpr int kCtasPerSm = 1;
};

// For chips with 99 KB of shared memory a CTA (compute capability 8.6, 8.9, 12.0).
struct SmallBackwardTile128 {
  static constexpr int kHeadDim = 128;
  static constexpr int kBlockK = 64, kBlockQ = 32;
  static constexpr int kWarps = 4, kKeysPerWarp = kBlockK / kWarps, kPassQ = 32;
  static constexpr int kCtasPerSm = 1;
};

}  // namespace tessera::attention::sm80
