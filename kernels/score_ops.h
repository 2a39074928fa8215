// The largest score of each head, and what an update does about one that is too large. AnyOp in ops.h lists
// these operations.
#pragma once

#include <cfloat>
#include <cmath>

#include "kernels/attention/choose.h"
#include "kernels/base/ordered_float.h"

namespace tessera {

// The largest score of each head, over all queries and the keys that they see. A score is what the softmax
// takes: scaled, capped, with its bias. Sinks do not count, dropout is not applied, and NaN is skipped.
//   largest[h] = max(largest[h], ordered_word(s))
// Words are ordered as kernels/base/ordered_float.h says. A step sets them to 0 before its first
// micro-batch; micro-batches may come in any order.
struct LargestScores {
  static constexpr const char* kName = "largest scores";
  const AttentionPlan& plan;
  Heads q, k;              // as AttentionForward takes them
  MaskTables tables = {};  // likewise
  Tensor largest;          // [H] int32

  void check_on(Device device) const;
};

// After a step, shrinks the weights of query heads whose largest score was above `most`, so that the scores
// of head h are multiplied by g[h] = most / largest[h] (QK-Clip: Kimi Team, arXiv:2507.20534). For other
// heads g[h] = 1. The rows of a key head are multiplied by r, the square root of the smallest g among the
// query heads that share it, and the rows of query head h by g[h] / r. So both get sqrt(g[h]) if no heads
// share keys. It changes nothing where AdamW does not.
struct ClipHeads {
  static constexpr const char* kName = "clip heads";
  // A slice of the weight [(H + 2 K) D, C] of queries, keys and values, or of their bias, where C is 1
  Tensor param, low;  // [n] as AdamW's
  int64_t first_element = 0;
  int64_t columns;             // C
  int64_t head_dim, kv_heads;  // D, K
  Tensor largest;              // [R, L, H] int32, of R ranks and L layers: the largest of the ranks counts
  int64_t layer;
  double most;          // above 0
  Tensor grad_norm;     // as AdamW's
  Tensor verdict = {};  // likewise

  void check_on(Device device) const;
};

// What ClipHeads multiplies the rows of a head by. A score that is not finite clips nothing.
struct HeadFactors {
  const uint32_t* largest;  // of the layer, of rank 0
  int ranks;
  int64_t rank_stride;
  int heads, group;  // H; H / K
  float most;

  static HeadFactors of(const ClipHeads& a) {
    const auto L = a.largest.shape[1], H = a.largest.shape[2];
    return {.largest = a.largest.as<uint32_t>() + a.layer * H,
            .ranks = static_cast<int>(a.largest.shape[0]),
            .rank_stride = L * H,
            .heads = static_cast<int>(H),
            .group = static_cast<int>(H / a.kv_heads),
            .most = static_cast<float>(a.most)};
  }
  TESSERA_HOST_DEVICE float of_scores(int head) const {  // g
    uint32_t word = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const uint32_t own = largest[rank * rank_stride + head];
      word = own > word ? own : word;
    }
    const float score = float_of_ordered(word);
    return score > most && score <= FLT_MAX ? most / score : 1.0f;
  }
  TESSERA_HOST_DEVICE float of_keys(int kv_head) const {
    float smallest = 1;
    for (int i = 0; i < group; ++i) {
      const float own = of_scores(kv_head * group + i);
      smallest = own < smallest ? own : smallest;
    }
    return sqrtf(smallest);
  }
  TESSERA_HOST_DEVICE float of_queries(int head) const { return of_scores(head) / of_keys(head / group); }
  // Heads of queries, then those of keys
  TESSERA_HOST_DEVICE float operator[](int head) const {
    return head < heads ? of_queries(head) : of_keys(head - heads);
  }
};

}  // namespace tessera
