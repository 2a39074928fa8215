// The workspace of the sm_90 backward. Plain C++.
#pragma once

#include "kernels/attention/sm90/shape.h"
#include "kernels/attention/workspace.h"

namespace tessera::attention::sm90 {

// Rows are padded to whole query tiles: the copy engine brings row statistics without asking where N ends.
struct BackwardWorkspace {
  static constexpr int kRowPadding = BackwardShape<64>::kBlockQ;  // the largest kBlockQ
  static constexpr int kSmallestBlockQ = BackwardShape<128>::kBlockQ;
  static_assert(kRowPadding % kSmallestBlockQ == 0);
  // Each of one warpgroup, with its own counter
  static constexpr int kPartsPerTile = BackwardShape<64>::kGroups;
  static_assert(kPartsPerTile == BackwardShape<128>::kGroups);

  BackwardWorkspace(void* memory, const AttnProblem& p) {
    Carver carver(memory);
    const int64_t padded_tokens = (p.tokens + kRowPadding - 1) / kRowPadding * kRowPadding;
    const auto rows = static_cast<size_t>(p.batch * p.heads * padded_tokens);
    row_statistics = carver.take<float>(rows * 2);
    dq = carver.take<float>(rows * static_cast<size_t>(tile_width(p.head_dim)));
    counters = carver.take<uint32_t>(rows / kSmallestBlockQ * kPartsPerTile + 1);
    bytes = carver.used();
  }

  float* row_statistics;  // [B, H, query tile, 2, kBlockQ]: LSE log2(e), +inf past N, where the probabilities
                          // thus become 0; and delta = rowsum(dO o O), 0 past N
  float* dq;              // [B, H, query tile, part, 64 x 64]: sums in the order of a warpgroup's registers
  uint32_t* counters;     // [0]: the next ticket; [1 + 2 tile + part]: key blocks that have added to it
  size_t bytes;
};

}  // namespace tessera::attention::sm90
