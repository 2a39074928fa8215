// Tile shapes and workspace of the forward in FP8. Plain C++.
#pragma once

#include "kernels/attention/sm90/workspace.h"

namespace tessera::attention::sm90 {

inline constexpr int kFp8Block = 128;  // rows of Q, K and V that share a scale

// Each consumer warpgroup owns a slice of 64 rows of a query tile. A key tile is a block of keys that share
// a scale.
template <int kHeadDim_>
struct Fp8Tile {
  using Score = ScaledScore;
  static constexpr bool kWhole = true, kDropout = false, kAnyMask = false, kSink = false, kListed = false,
                        kFp8 = true;
  static constexpr int kHeadDim = kHeadDim_, kBlockK = kFp8Block;
  // P V is computed for kPartColumns columns at a time, in the registers that S had before: two parts at a
  // time. A thread has 64 registers of S, 16 of P and D / 2 of O. kSumRows: rows of V transposed, after its
  // own, for the sums of P.
  static constexpr int kPartColumns = 64, kSumRows = kHeadDim == 256 ? 0 : 8;
  static constexpr int kConsumers = kHeadDim == 256 ? 2 : 3, kBlockQ = kConsumers * kWarpgroupRows;
  static constexpr int kProducerRegisters = kConsumers == 3 ? 32 : 40,
                       kConsumerRegisters = kConsumers == 3 ? 160 : 232;
  static constexpr int kRowBytes =
      kHeadDim == 64 ? 128 : kHeadDim;  // of Q and K: at least the 128 bytes of a panel of Tile
  static constexpr int kQSlots = kHeadDim == 256 ? 1 : 2, kKVSlots = kHeadDim == 256 ? 2 : 3;
};

// Q, K and V in e4m3, each block of 128 rows of a head with a scale
struct Fp8Workspace {
  static constexpr int64_t blocks_of(int64_t tokens) { return (tokens + kFp8Block - 1) / kFp8Block; }

  Fp8Workspace(void* memory, const AttnProblem& p) {
    const size_t of_spans = ForwardWorkspace(nullptr, p).bytes;
    Carver carver(memory != nullptr ? static_cast<uint8_t*>(memory) + of_spans : nullptr);
    const int width = tile_width(p.head_dim), row_bytes = width == 64 ? 128 : width;
    q_blocks = blocks_of(p.tokens), k_blocks = blocks_of(p.kv_tokens);
    const int64_t q = p.batch * p.heads * q_blocks, k = p.batch * p.kv_heads * k_blocks;
    this->q = carver.take<uint8_t>(static_cast<size_t>(q * kFp8Block * row_bytes));
    this->k = carver.take<uint8_t>(static_cast<size_t>(k * kFp8Block * row_bytes));
    v = carver.take<uint8_t>(static_cast<size_t>(k * kFp8Block * width));
    q_scales = carver.take<float>(static_cast<size_t>(q));
    k_scales = carver.take<float>(static_cast<size_t>(k));
    v_scales = carver.take<float>(static_cast<size_t>(k));
    bytes = of_spans + carver.used();
  }

  int64_t q_blocks, k_blocks;
  uint8_t *q, *k;  // [B, H or K, blocks of tokens, 128, row bytes]; rows are turned: see fp8_quantise.cuh
  uint8_t* v;      // [B, K, width, key blocks, 128]: transposed, with keys in the order of fp8_quantise.cuh
  float *q_scales, *k_scales, *v_scales;  // [B, H or K, blocks]
  size_t bytes;
};

}  // namespace tessera::attention::sm90
