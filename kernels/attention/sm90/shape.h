// Tile shapes of the sm_90 kernels. Plain C++.
#pragma once

#include "kernels/hopper/sizes.h"

namespace tessera::attention {
struct ScaledScore;  // common/score.cuh
struct FramedAlibiScore;
struct CappedScore;
}  // namespace tessera::attention

namespace tessera::attention::sm90 {

using namespace hopper;

inline constexpr int kSpansThreads = 1024;  // of a CTA of the kernels that find spans, before the main ones

// The width of the tiles that hold heads of this many columns
constexpr int tile_width(int head_dim) { return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256; }

// A shape for heads that are narrower than tiles of two panels: panels are copied one by one. A tile of one
// panel does not need this.
template <class Shape>
struct Narrow : Shape {
  static constexpr bool kWhole = false;
};

// A shape of the kernels with dropout
template <class Shape>
struct WithDropout : Shape {
  static constexpr bool kDropout = true;
};

// A shape of the kernels for any mask, which go through what Mask says. The other kernels know only causal
// and full masks with as many keys as queries.
template <class Shape>
struct WithMask : Shape {
  static constexpr bool kAnyMask = true;
};

// A shape of kernels with ALiBi, for causal masks whose queries are not dealt
template <class Shape>
struct WithAlibi : Shape {
  using Score = FramedAlibiScore;
};

// A shape of kernels with a cap of scores
template <class Shape>
struct WithCap : Shape {
  using Score = CappedScore;
};

// A shape of forward kernels whose rows have a sink
template <class Shape>
struct WithSink : Shape {
  static constexpr bool kSink = true;
};

// A shape of kernels for sparse blocks, with any mask beside: they walk places of a list (blocks.h)
template <class Shape>
struct Listed : WithMask<Shape> {
  static constexpr bool kListed = true;
};

// Forward: each consumer warpgroup owns a slice of 64 rows of a query tile, and all walk the same key tiles.
struct ForwardTileBase {
  using Score = ScaledScore;
  static constexpr bool kWhole = true, kDropout = false, kAnyMask = false, kSink = false, kListed = false,
                        kFp8 = false;
  static constexpr int kConsumers = 3;  // warpgroups; one more loads
  static constexpr int kBlockQ = kConsumers * kWarpgroupRows;
  // 32 + 3 x 160 registers, of 4 x 128
  static constexpr int kProducerRegisters = 32, kConsumerRegisters = 160;
  static constexpr int kKVSlots = 3, kQSlots = 2;
};

template <int kHeadDim_>
struct ForwardTile;

// kWaitLate: the softmax of a tile is finished before the running product P V is waited for. With head dim 64
// that product is nearly done when it has been issued, and the compiler does better if it is free to wait
// early.
template <>
struct ForwardTile<64> : ForwardTileBase {
  static constexpr int kHeadDim = 64, kBlockK = 128;
  static constexpr bool kWaitLate = false;
};

template <>
struct ForwardTile<128> : ForwardTileBase {
  static constexpr int kHeadDim = 128, kBlockK = 80;  // S, P, O: 40 + 20 + 64 registers
  static constexpr bool kWaitLate = true;
};

// Shared memory holds only one slot of Q beside two of K and two of V, so a tile ends before the next one
// begins.
template <>
struct ForwardTile<256> : ForwardTileBase {
  static constexpr int kHeadDim = 256, kBlockK = 80;  // S, P, O: 40 + 20 + 128 registers
  static constexpr int kConsumers = 2, kBlockQ = kConsumers * kWarpgroupRows;
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;  // of 3 x 168
  static constexpr int kKVSlots = 2, kQSlots = 1;
  static constexpr bool kWaitLate = true;
};

// For any mask: the spans of rows take registers, so a key tile is smaller.
struct MaskedForwardTile256 : WithMask<ForwardTile<256>> {
  static constexpr int kBlockK = 64;
};

// For sparse blocks, which must consist of whole query tiles and key tiles: 128 queries and 128 keys
template <int kHeadDim>
struct ListedForwardTile : Listed<ForwardTile<kHeadDim>> {
  static constexpr int kBlockK = 128;  // S, P, O: 64 + 32 + D / 2 registers
  static constexpr int kConsumers = 2, kBlockQ = kConsumers * kWarpgroupRows;
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;  // of 3 x 168
  static constexpr int kKVSlots = kHeadDim == 64 ? 3 : 2;
};

// Backward: a CTA takes kBlockK keys, 64 for each warpgroup, and kBlockQ queries a step. Each warpgroup
// computes a part of 64 x 64 of the step's dQ [kBlockQ, kHeadDim].
template <int kHeadDim_>
struct BackwardShape {
  using Score = ScaledScore;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr bool kWhole = true, kDropout = false, kAnyMask = false, kListed = false;
  static constexpr int kBlockK = 128, kBlockQ = kHeadDim == 64 ? 128 : 64;
  static constexpr int kGroups = kBlockK / kWarpgroupRows;     // warpgroups that multiply
  static constexpr int kThreads = (kGroups + 1) * kWarpgroup;  // one more moves data
  static constexpr int kSenders = kHeadDim == 64 ? 2 : 3;      // warps that send dQ: see Sender
  static constexpr int kSlots = 2;  // of Q, of dO, of dS and of dQ, so that one index serves all of them
  static constexpr int kPart = 64, kPartFloats = kPart * kPart;  // of dQ
  static_assert(kBlockQ * kHeadDim == kGroups * kPartFloats);
  // The part of warpgroup g begins at query g kPartsApartQ and column g kPartsApartD.
  static constexpr int kPartsApartQ = kBlockQ > kPart ? kPart : 0,
                       kPartsApartD = kHeadDim > kPart ? kPart : 0;
};

}  // namespace tessera::attention::sm90
