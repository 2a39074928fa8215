// Tile shapes of the sm_90 forward. Plain C++.
#pragma once

namespace tessera::attention::sm90 {

// Of a query tile each consumer warpgroup owns a slice of 64 rows, and all walk the same key tiles.
struct ForwardTileBase {
  static constexpr int kConsumers = 3;  // warpgroups; one more loads
  static constexpr int kProducerRegisters = 32,
                       kConsumerRegisters = 160;  // 32 + 3 x 160 of the 4 x 128 there are
  static constexpr int kKVStages = 3, kQStages = 2;
};

template <int kHeadDim_>
struct ForwardTile;

// kWaitLate: the softmax of a tile is finished before the product P V under way is waited for. With head dim
// 64 that product is as good as done when it has been issued, and the compiler does better when free to wait
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

}  // namespace tessera::attention::sm90
