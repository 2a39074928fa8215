// The workspace of the sm_80 backward. Plain C++.
#pragma once

#include "kernels/attention/sm80/shape.h"
#include "kernels/attention/workspace.h"

namespace tessera::attention::sm80 {

// Rows are padded to whole query tiles: the main kernel copies row statistics without asking where N ends.
struct BackwardWorkspace {
  static constexpr int kRowPadding = BackwardTile<64>::kBlockQ;  // the largest kBlockQ
  static constexpr int smallest_block_q(int head_dim) {
    return head_dim <= 128 ? SmallBackwardTile128::kBlockQ : SmallBackwardTile256::kBlockQ;
  }

  BackwardWorkspace(void* memory, const AttnProblem& p) {
    Carver carver(memory);
    padded_tokens = (p.tokens + kRowPadding - 1) / kRowPadding * kRowPadding;
    const auto rows = static_cast<size_t>(p.batch * p.heads * padded_tokens);
    log2_sum_exp = carver.take<float>(rows);
    delta = carver.take<float>(rows);
    dq = carver.take<float>(rows * static_cast<size_t>(tile_width(p.head_dim)));
    counters = carver.take<uint32_t>(rows / smallest_block_q(p.head_dim) + 1);
    bytes = carver.used();
  }

  int64_t padded_tokens;
  float* log2_sum_exp;  // [B, H, padded N]: LSE log2(e), +inf past N, where the probabilities thus become 0
  float* delta;         // [B, H, padded N]: rowsum(dO o O), 0 past N
  float* dq;            // [B, H, query tile, kBlockQ tile_width]: sums in the order of the main kernel's
                        // registers
  uint32_t* counters;   // [0]: the next ticket; [1 + tile]: key blocks that have added to a query tile
  size_t bytes;
};

}  // namespace tessera::attention::sm80
