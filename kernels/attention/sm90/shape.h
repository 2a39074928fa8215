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

// A shape for heads narrower than its tiles of two panels: panels are copied one by one. A tile of one panel
// needs nothing of the kind.
template <class Shape>
struct Narrow : Shape {
  static constexpr bool kWhole = false;
};

// A shape of the kernels with dropout
template <class Shape>
struct WithDropout : Shape {
  static constexpr bool kDropout = true;
};

// A shape of the kernels for any mask, which walk what Mask says; the others know causal and full alone, with
// as many keys as queries.
template <class Shape>
struct WithMask : Shape {
  static constexpr bool kAnyMask = true;
};

// A shape of kernels with ALiBi, of causal masks, where queries have their place in the sequence
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

// Forward: of a query tile each consumer warpgroup owns a slice of 64 rows, and all walk the same key tiles.
struct ForwardTileBase {
  using Score = ScaledScore;
  static constexpr bool kWhole = true, kDropout = false, kAnyMask = false, kSink = false, kListed = false,
                        kFp8 = false;
  static constexpr int kConsumers = 3;  // warpgroups; one more loads
  static constexpr int kBlockQ = kConsumers * kWarpgroupRows;
  // 32 + 3 x 160 of the 4 x 128 there are
  static constexpr int kProducerRegisters = 32, kConsumerRegisters = 160;
  static constexpr int kKVSlots = 3, kQSlots = 2;
};

template <int kHeadDim_>
struct ForwardTile;

// kWaitLate: the softmax of a tile is finished before the product P V under way is waited
// for. With head dim 64 that product is as good as done when it has been issued, and the
// compiler does better when free to wait early.
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

// One slot of Q beside two of K and V each is all that fits: a tile ends before the next one begins.
template <>
struct ForwardTile<256> : ForwardTileBase {
  static constexpr int kHeadDim = 256, kBlockK = 80;  // S, P, O: 40 + 20 + 128 registers
  static constexpr int kConsumers = 2, kBlockQ = kConsumers * kWarpgroupRows;
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;  // of 3 x 168
  static constexpr int kKVSlots = 2, kQSlots = 1;
  static constexpr bool kWaitLate = true;
};

// For any mask, whose spans take registers
struct MaskedForwardTile256 : WithMask<ForwardTile<256>> {
  static constexpr int kBlockK = 64;
};

// For sparse blocks, of which a query tile and a key tile must be a part: 128 queries and 128 keys
template <int kHeadDim>
struct ListedForwardTile : Listed<ForwardTile<kHeadDim>> {
  static constexpr int kBlockK = 128;  // S, P, O: 64 + 32 + D / 2 registers
  static constexpr int kConsumers = 2, kBlockQ = kConsumers * kWarpgroupRows;
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;  // of 3 x 168
  static constexpr int kKVSlots = kHeadDim == 64 ? 3 : 2;
};

// Backward: a CTA takes kBlockK keys, 64 a warpgroup, and kBlockQ queries a step. Of the step's dQ
// [kBlockQ, kHeadDim] each warpgroup computes a part of 64 x 64.
template <int kHeadDim_>
struct BackwardShape {
  using Score = ScaledScore;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr bool kWhole = true, kDropout = false, kAnyMask = false, kListed = false;
  static constexpr int kBlockK = 128, kBlockQ = kHeadDim == 64 ? 128 : 64;
  static constexpr int kGroups = kBlockK / kWarpgroupRows;     // warpgroups that multiply
  static constexpr int kThreads = (kGroups + 1) * kWarpgroup;  // one more moves data
  static constexpr int kSenders = kHeadDim == 64 ? 2 : 3;      // warps that send dQ: see Sender
  static constexpr int kSlots = 2;  // of Q, dO, dS and dQ alike, so that one place tells all
  static constexpr int kPart = 64, kPartFloats = kPart * kPart;  // of dQ
  static_assert(kBlockQ * kHeadDim == kGroups * kPartFloats);
  // The part of warpgroup g begins at query g kPartsApartQ and column g kPartsApartD.
  static constexpr int kPartsApartQ = kBlockQ > kPart ? kPart : 0,
                       kPartsApartD = kHeadDim > kPart ? kPart : 0;
};

}  // namespace tessera::attention::sm90
