// Attention of whole sequences. The rules for all operations are in ops.h.
#pragma once

#include <algorithm>

#include "kernels/attention/choose.h"
#include "kernels/base/tensor.h"
#include "kernels/base/view.h"

namespace tessera {

// y = softmax(scale q k^T + mask) v. With H query heads and K heads of keys and values, query head h reads
// head h / (H / K). A plan may add a bias to the scores (AttentionScores). With sinks, the softmax of a row
// of head h has one more score, sinks[h], which belongs to no key and no value (kernels/attention/sinks.h).
struct AttentionForward {
  static constexpr const char* kName = "attention forward";
  const AttentionPlan& plan;
  // H heads of [B, T, heads, D], and K heads of [B, kv_tokens, heads, D]: often of one tensor, see view.h
  Heads q, k, v;
  Heads y;                 // H heads of [B, T, heads, D]
  Tensor saved;            // [plan.saved_shape], for the backward; it does not depend on dropout
  Tensor workspace = {};   // plan.forward_workspace_bytes
  Dropout dropout = {};    // of the probabilities; refused by a plan without it
  MaskTables tables = {};  // if the plan's mask has tables, and only then
  Tensor sinks = {};       // [H], if the plan has sinks, and only then

  void check_on(Device device) const;
};
struct AttentionBackward {
  static constexpr const char* kName = "attention backward";
  const AttentionPlan& plan;
  Heads q, k, v;  // as the forward took them
  Heads y;        // as the forward wrote it, and so is `saved`
  Tensor saved;
  Heads dy;                // like y
  Heads dq, dk, dv;        // like q, k, v; dk and dv are sums over the query heads that read the same head
  Tensor workspace = {};   // plan.backward_workspace_bytes
  Dropout dropout = {};    // the forward's
  MaskTables tables = {};  // the forward's
  Tensor sinks = {};       // the forward's
  Tensor dsinks = {};      // [H]; none: not wanted
  bool accumulate = true;  // whether dsinks is added to

  void check_on(Device device) const;
};

// The entropy of attention for some of its queries, for an observer. s are the scores, with their bias, of
// the keys that a query sees, and p = softmax(s). For each head it is the mean over the queries of the
// entropy -sum p log p, in nats. Sinks are not among the scores, and nothing is dropped. A query that sees no
// key does not count; if no query counts, the entropy is 0. LargestScores (score_ops.h) looks at all queries.
struct AttentionSample {
  static constexpr const char* kName = "attention sample";
  static constexpr int64_t kSequences = 8, kQueries = 64;  // at most: the first ones, and evenly spaced ones
  static int64_t sequences(const AttentionShape& shape) { return std::min(shape.batch, kSequences); }
  static int64_t queries(const AttentionShape& shape) { return std::min(shape.tokens, kQueries); }
  // The token of sampled query number i in a sequence of `tokens` tokens. The last sampled query is the last
  // token.
  TESSERA_HOST_DEVICE static constexpr int64_t query(int64_t i, int64_t tokens) {
    return tokens <= kQueries ? i : (i + 1) * tokens / kQueries - 1;
  }

  const AttentionPlan& plan;
  Heads q, k;              // as AttentionForward takes them
  MaskTables tables = {};  // likewise
  Tensor entropy;          // [H] fp32

  void check_on(Device device) const;
};

// Moves rows of heads into another order, dtype or place: row n of `to` becomes row rows[n] of `from`, or 0
// if rows[n] is below 0. Rows are counted over all sequences. fp32 and bf16 are converted into each other.
struct MoveHeads {
  static constexpr const char* kName = "move heads";
  Heads from, to;    // an equal number of heads, of [B, T, heads, D], each tensor with its own B and T
  Tensor rows = {};  // int32, for each row of `to`; none: row n becomes row n, and both have as many rows

  void check_on(Device device) const;
};

}  // namespace tessera
