// The workspace of decoding with a mixture of blocks. Plain C++.
#pragma once

#include "kernels/attention/choice.h"
#include "kernels/attention/workspace.h"

namespace tessera::attention::mixture {

inline constexpr int kDecodeTile = 512;  // keys of a CTA, at most

struct DecodeWorkspace {
  DecodeWorkspace(void* memory, const AttnDecodeProblem& p, const AttnChoice& choice)
      : tiles(choice.count * ((choice.size + kDecodeTile - 1) / kDecodeTile)),
        slots(static_cast<int>((p.capacity + choice.size - 1) / choice.size)) {
    Carver carver(memory);
    const auto heads = static_cast<size_t>(p.batch * p.heads), parts = heads * static_cast<size_t>(tiles);
    scores = carver.take<float>(heads * static_cast<size_t>(slots));
    chosen = carver.take<int32_t>(heads * static_cast<size_t>(choice.count));
    most = carver.take<float>(parts), sums = carver.take<float>(parts);
    values = carver.take<float>(parts * static_cast<size_t>(p.head_dim));
    bytes = carver.used();
  }

  int tiles, slots;
  float* scores;       // [B, H, slots]: products of the query and the means
  int32_t* chosen;     // [B, H, count]: first keys of the blocks that are seen, its own last; -1: none
  float *most, *sums;  // [B, H, tiles]: the largest score m; the sum of exp(score - m)
  float* values;       // [B, H, tiles, D]: the sum of exp(score - m) v
  size_t bytes;
};

}  // namespace tessera::attention::mixture
