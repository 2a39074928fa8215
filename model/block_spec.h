// BlockSpec: which variant of each part a block has. The sizes are in ModelConfig.
#pragma once

#include "kernels/attention/choose.h"
#include "model/config.h"

namespace tessera {

struct BlockSpec {
  int64_t window = 0;  // a query sees the last `window` keys, its own among them; 0: all keys before it
  SparsePattern sparse = {};             // which blocks of keys a block of queries sees
  bool rotary = false;                   // q and k are rotated
  bool local_angles = false;             // by the angles of model.rope.local_theta
  AttentionScores scores = {};           // rules for the scores of attention
  NormKind norm = NormKind::kLayerNorm;  // the kind of all norms
  NormPlace norm_place = NormPlace::kBefore;
  Mlp mlp = Mlp::kGelu;
  bool experts = false;        // a mixture of such MLPs, in place of one
  bool shared_expert = false;  // and one more MLP, which every token goes through

  bool gated() const { return is_gated(mlp); }
  bool norms_before() const { return norm_place != NormPlace::kAfter; }
  bool norms_after() const { return norm_place != NormPlace::kBefore; }
  bool operator==(const BlockSpec&) const = default;
};

// The spec of a block. This function is the only place where blocks of a model begin to differ: by their
// windows, and so their angles, by what is sparse, and by experts.
BlockSpec block_spec(const ModelConfig& config, size_t layer);

}  // namespace tessera
