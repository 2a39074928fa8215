// Model: a transformer at a batch size, ready to run. Batch: what it reads. Pass: one run over a batch.
#pragma once

#include <algorithm>
#include <functional>

#include "kernels/stream.h"
#include "model/attention_plans.h"
#include "model/by_block.h"
#include "model/context.h"
#include "model/dropout.h"
#include "model/experts.h"
#include "model/fp8_linear.h"
#include "model/keep.h"
#include "model/losses/loss_rule.h"
#include "model/store/param_store.h"

namespace tessera {

class ActivationOffload;  // activation_offload.h

// One batch: rows of T tokens and, for each, the token that follows, or kNoTarget: its loss does not count.
struct Batch {
  Tensor tokens, targets;  // [B, T] int32; forward() needs no targets
  Tensor positions = {};   // [B, T] int32: each token's place in its document. None: that in its sequence
  Tensor documents = {};   // [B, T, 2] int32, see ops.h: where the plan's mask has tables, and only there
  Tensor kinds = {};       // [B, T] int32: the DocumentKind of each token's document; for a loss of pairs
  Tensor figures = {};     // there, [PreferenceFigures::kCount, N] fp32: written by a training, see ops.h
  // Of a loss of answers with labels (kto): [1] fp32, the sum of the step that PreferenceLoss::divergence is.
  // `own`: where a micro-batch is the whole share of its rank, the sum over it is found on the way: it is
  // written there, and share() makes the step's of it. None: the step's is known, by measure_divergence().
  struct Divergence {
    Tensor of_step = {}, own = {}, gradient_scale = {};
    std::function<void()> share = {};
  };
  Divergence divergence = {};
  Tensor log_probs = {};  // [N, 2] fp32, see PreferenceLoss::stored: for a loss with a stored reference
  // [N, K] int32 and [N, K + 1] fp32, see LargestLogits: of a teacher, for a loss with stored logits
  Tensor teacher_ids = {}, teacher_logits = {};
  // [N] fp32: of the losses of a training; of a pair that of its first row. None: all are 1.
  Tensor weights = {};
  Tensor counted = {};  // [B, T] int32: 0 for tokens that routers' losses leave out; none: there are no such
  const KvCache* cache = nullptr;  // of B slots, whose texts the batch continues: see decode.h
  // For a loss of pairs where a context has several ranks: the documents [B, T_all, 2] and targets [B, T_all]
  // int32 of all tokens of its sequences. kinds, figures, log_probs and weights then have all tokens as well
  Tensor all_documents = {}, all_targets = {};
  // Where a context has several ranks, each with T of a sequence's tokens. [B, T] int32: the places of these
  // in the sequence; and see AttentionForward, context.h
  Tensor places = {}, seen_by = {};
  ContextTables context = {};
  // There, in place of `documents` and `seen_by`, of blocks with a window that hides keys
  struct Within {
    int64_t window;
    Tensor documents, seen_by;
  };
  std::vector<Within> within = {};

  // For attention of a plan with this window
  MaskTables mask_tables(int64_t window) const;
};

// So many of `rows` are computed at a time; 0: all
constexpr int64_t rows_at_a_time(int64_t chunk, int64_t rows) {
  return chunk > 0 ? std::min(chunk, rows) : rows;
}

// Everything that stays the same from step to step
struct Model {
  ModelConfig config;
  ParamStore* params;        // dtype of the activations too
  AttentionPlans attention;  // carry B and T; the scale is 1 / sqrt(D), see attention_scale()
  Tensor angles = {};        // [>= T, R / 2, 2] fp32, see rope.h; with rotary positions
  Tensor local_angles = {};  // likewise, of blocks with a window, where model.rope.local_theta is set
  SparseLists sparse = {};   // of the longest sequence, where model.sparse hides blocks
  ByBlock<Keep> keep = {};
  int64_t classifier_chunk = 0;  // rows of [N, padded V] logits that exist at a time; 0: all N
  int64_t mlp_chunk = 0;         // rows of an MLP's hidden layer, likewise; where `keep` drops it
  LossRule loss = cross_entropy();
  RouterLosses router_losses = {};  // of a training step
  Tensor choice_counts = {};        // [ranks, E] int32: see ChooseExpertsBackward; with such losses
  bool fused_head = false;          // by loss.run_fused, if the classifier is trained, not in FP8, and no cap
  const Model* reference = nullptr;  // of a training whose loss needs one: fixed weights at the same batch
  const Model* teacher = nullptr;    // of a training whose loss needs one: fixed weights, of its own sizes
  const Fp8Layers* fp8 = nullptr;    // set for a training step in FP8, see fp8.h
  ActivationOffload* offload = nullptr;  // of a training step; null: what blocks keep stays on the device
  size_t offloaded_blocks = 0;           // with it: so many of the first ones are offloaded
  Communicator* context = nullptr;       // of the ranks that share a sequence; null: this one has it whole

  const BlockKind& kind(size_t layer) const { return params->layout().kinds.of(layer); }
  bool chunks_mlp() const { return rows_at_a_time(mlp_chunk, attention.rows()) < attention.rows(); }
  const Fp8Linear& fp8_of(size_t layer, const LinearOfStage& linear) const;  // one that is off: not in FP8
  const Fp8Linear& fp8_of_head() const;

  // The weights that a pass reads, for as long as it does
  WeightLease<TableParams> lease_tables() const {
    return params->lease_tables(lease_for(LeaseFor::kForward));
  }
  WeightLease<BlockParams> lease_block(size_t layer, LeaseFor use) const {
    return params->lease_block(layer, lease_for(use));
  }
  WeightLease<HeadParams> lease_head(LeaseFor use) const { return params->lease_head(lease_for(use)); }
  LeaseFor lease_for(LeaseFor use) const { return fp8 ? use : LeaseFor::kInference; }
};
// The model of a training for a forward that no backward follows: its activations stay where they are.
inline Model forward_only(Model model) {
  model.offload = nullptr, model.offloaded_blocks = 0;
  return model;
}

// The scale of the scores of a block; `plans` is that of the plan, 1 / sqrt(D).
float attention_scale(const ModelConfig& config, size_t layer, float plans);
// Of the token table, rounded to the weights' dtype as in transformers
float embedding_scale(const ModelConfig& config, DType dtype);

// What a micro-batch of a training writes about itself, at some steps
struct Probe {
  Tensor attention_entropies;                       // [L, H] fp32: see AttentionSample
  Tensor unit_maxima;                               // [F] fp32: room for a layer
  Tensor dead_units;                                // [L] fp32
  Tensor expert_loads = {}, router_entropies = {};  // [L, E] [L] fp32: see RouterSample; none: no experts
  // [S, 2, 2] int32: of each layer in FP8 how many values of x and of dy were cut off, see CountSaturated
  Tensor saturated = {};

  Tensor saturated_x(const Fp8Linear& fp8) const { return saturated_of(fp8, 0); }
  Tensor saturated_dy(const Fp8Linear& fp8) const { return saturated_of(fp8, 1); }

 private:
  Tensor saturated_of(const Fp8Linear& fp8, int64_t of_dy) const {
    if (!fp8 || !saturated) return {};
    return saturated.view({saturated.numel()}).rows(2 * (2 * fp8.number + of_dy), 2);
  }
};

struct Pass {
  const Stream& stream;
  const Model& model;
  const Batch& batch;
  const ActiveDropout& dropout;
  bool accumulate = true;     // gradients of parameters; else they are overwritten
  Tensor choice_counts = {};  // [E] int32: a forward adds how often experts are chosen; none: it does not
  Tensor largest_scores = {};  // [L, H] int32: a forward raises them, see LargestScores; none: it does not
  // None: it writes nothing about itself. `probe` is of a forward, not of what a backward computes again.
  const Probe *probe = nullptr, *backward_probe = nullptr;
};

// [N, C] as [B, T, C]
Tensor by_sequence(const Model& model, const Tensor& rows);

// Of what a branch adds in a layer: dropout, and model.residual_scale
Dropout branch_dropout(const Pass& pass, DropoutKind kind, size_t layer);

// y = dropout(x), or add + dropout(x), all [N, C]; nothing without dropout
void drop(const Pass& pass, ApplyDropout op);

}  // namespace tessera
