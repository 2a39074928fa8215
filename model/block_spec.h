// BlockSpec: which variant of everything one block computes. The sizes are those of the ModelConfig.
#pragma once

#include "kernels/attention/choose.h"
#include "model/config.h"

namespace tessera {

struct BlockSpec {
  int64_t window = 0;  // a query sees the last `window` keys, its own among them; 0: all keys before it
  SparsePattern sparse = {};             // which blocks of keys a block of queries sees
  bool rotary = false;                   // q and k are rotated
  bool local_angles = false;             // by those of model.rope.local_theta
  AttentionScores scores = {};           // of attention
  NormKind norm = NormKind::kLayerNorm;  // of all norms
  NormPlace norm_place = NormPlace::kBefore;
  Mlp mlp = Mlp::kGelu;
  bool experts = false;        // of such MLPs, in place of one
  bool shared_expert = false;  // and one more, which every token goes through

  bool gated() const { return is_gated(mlp); }
  bool norms_before() const { return norm_place != NormPlace::kAfter; }
  bool norms_after() const { return norm_place != NormPlace::kBefore; }
  bool operator==(const BlockSpec&) const = default;
};

// What differs between the blocks of a model begins here: their windows, and so their angles, and what is
// sparse.
BlockSpec block_spec(const ModelConfig& config, size_t layer);

}  // namespace tessera
