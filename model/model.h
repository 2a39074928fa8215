// Model: a transformer for a batch size, ready to run. Batch: the data that it reads. Pass: one run over a
// batch.
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

// A batch: rows of T tokens. The target of a token is the token that follows, or kNoTarget if its loss does
// not count.
struct Batch {
  Tensor tokens, targets;  // [B, T] int32; forward() needs no targets
  Tensor positions = {};   // [B, T] int32: each token's place in its document; none: its place in its
                           // sequence
  Tensor documents = {};   // [B, T, 2] int32, see ops.h: if the plan's mask has tables, and only then
  Tensor kinds = {};       // [B, T] int32: the DocumentKind of each token's document; for a loss of pairs
  Tensor figures = {};     // [PreferenceFigures::kCount, N] fp32, for a loss of pairs: written by a training
  // For kto, a loss of answers with labels: `of_step` [1] fp32 is PreferenceLoss::divergence, the sum over
  // the step. If a micro-batch is the whole share of its rank, its own sum is found in the same pass: it is
  // written to `own`, and share() computes `of_step` from the ranks' sums. If `own` is none,
  // measure_divergence() has found `of_step` before.
  struct Divergence {
    Tensor of_step = {}, own = {}, gradient_scale = {};
    std::function<void()> share = {};
  };
  Divergence divergence = {};
  Tensor log_probs = {};  // [N, 2] fp32, see PreferenceLoss::stored; for a loss with a stored reference
  // [N, K] int32 and [N, K + 1] fp32, see LargestLogits: from a teacher, for a loss with stored logits
  Tensor teacher_ids = {}, teacher_logits = {};
  // [N] fp32: the weights of the losses of a training; a pair has the weight of its first row. None: all are
  // 1.
  Tensor weights = {};
  Tensor counted = {};  // [B, T] int32: 0 for tokens that the routers' losses leave out; none: they leave out
                        // none
  const KvCache* cache = nullptr;  // of B slots, whose texts the batch continues: see decode.h
  // For a loss of pairs in a context of several ranks: the documents [B, T_all, 2] and targets [B, T_all]
  // int32 of all tokens of its sequences. kinds, figures, log_probs and weights then are for all tokens as
  // well
  Tensor all_documents = {}, all_targets = {};
  // In a context of several ranks, each has T tokens of a sequence. `places` [B, T] int32 are their places in
  // the sequence. For the others see AttentionForward and context.h
  Tensor places = {}, seen_by = {};
  ContextTables context = {};
  // In such a context, for blocks with a window that hides keys: used in place of `documents` and `seen_by`
  struct Within {
    int64_t window;
    Tensor documents, seen_by;
  };
  std::vector<Within> within = {};

  // The tables for attention whose plan has this window
  MaskTables mask_tables(int64_t window) const;
};

// How many of `rows` are computed at a time, for a chunk of this size; a chunk of 0 means all
constexpr int64_t rows_at_a_time(int64_t chunk, int64_t rows) {
  return chunk > 0 ? std::min(chunk, rows) : rows;
}

// Everything that stays the same from step to step
struct Model {
  ModelConfig config;
  ParamStore* params;        // its dtype is also the dtype of the activations
  AttentionPlans attention;  // have B and T; their scale is 1 / sqrt(D), see attention_scale()
  Tensor angles = {};        // [>= T, R / 2, 2] fp32, see rope.h; if positions are rotary
  Tensor local_angles = {};  // the same for blocks with a window, if model.rope.local_theta is set
  SparseLists sparse = {};   // for the longest sequence, if model.sparse hides blocks
  ByBlock<Keep> keep = {};
  int64_t classifier_chunk = 0;  // rows of [N, padded V] logits that exist at a time; 0: all N
  int64_t mlp_chunk = 0;         // rows of an MLP's hidden layer that exist at a time, if `keep` drops it; 0:
                                 // all
  LossRule loss = cross_entropy();
  RouterLosses router_losses = {};  // of a training step
  Tensor choice_counts = {};        // [ranks, E] int32: see ChooseExpertsBackward; if there are such losses
  bool fused_head = false;  // uses loss.run_fused, if the classifier is trained, not in FP8 and has no cap
  const Model* reference = nullptr;  // for a training whose loss needs one: fixed weights, at the same batch
  const Model* teacher = nullptr;    // for a training whose loss needs one: fixed weights and its own sizes
  const Fp8Layers* fp8 = nullptr;    // set for a training step in FP8, see fp8.h
  ActivationOffload* offload = nullptr;  // for a training step; null: what blocks save stays on the device
  size_t offloaded_blocks = 0;           // with offload: how many of the first blocks are offloaded
  Communicator* context = nullptr;       // of the ranks that share a sequence; null: this rank has it whole

  const BlockKind& kind(size_t layer) const { return params->layout().kinds.of(layer); }
  bool chunks_mlp() const { return rows_at_a_time(mlp_chunk, attention.rows()) < attention.rows(); }
  const Fp8Linear& fp8_of(size_t layer, const LinearOfStage& linear) const;  // an empty one if not in FP8
  const Fp8Linear& fp8_of_head() const;

  // The weights that a pass reads, leased for as long as the pass reads them
  WeightLease<TableParams> lease_tables() const {
    return params->lease_tables(lease_for(LeaseFor::kForward));
  }
  WeightLease<BlockParams> lease_block(size_t layer, LeaseFor use) const {
    return params->lease_block(layer, lease_for(use));
  }
  WeightLease<HeadParams> lease_head(LeaseFor use) const { return params->lease_head(lease_for(use)); }
  LeaseFor lease_for(LeaseFor use) const { return fp8 ? use : LeaseFor::kInference; }
};
// The model of a training, for a forward without a backward: its activations stay on the device.
inline Model forward_only(Model model) {
  model.offload = nullptr, model.offloaded_blocks = 0;
  return model;
}

// The scale of the scores of a block. `plans` is the scale of the plan, 1 / sqrt(D).
float attention_scale(const ModelConfig& config, size_t layer, float plans);
// The factor of the rows of the token table, rounded to the weights' dtype as in transformers
float embedding_scale(const ModelConfig& config, DType dtype);

// What a micro-batch of a training measures about itself, in some steps
struct Probe {
  Tensor attention_entropies;                       // [L, H] fp32: see AttentionSample
  Tensor unit_maxima;                               // [F] fp32: scratch for one layer
  Tensor dead_units;                                // [L] fp32
  Tensor expert_loads = {}, router_entropies = {};  // [L, E] [L] fp32: see RouterSample; none: no experts
  // [S, 2, 2] int32: for each layer in FP8, how many values of x and of dy were cut off, see CountSaturated
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
  bool accumulate = true;     // whether gradients of parameters are added to; else they are overwritten
  Tensor choice_counts = {};  // [E] int32: a forward adds how often experts are chosen; none: it does not
  Tensor largest_scores = {};  // [L, H] int32: a forward raises them, see LargestScores; none: it does not
  // None: nothing is measured. `probe` is for a forward, but not for stages that a backward computes again.
  const Probe *probe = nullptr, *backward_probe = nullptr;
};

// Views [N, C] as [B, T, C].
Tensor by_sequence(const Model& model, const Tensor& rows);

// What a layer does to a branch before it is added: dropout, and model.residual_scale
Dropout branch_dropout(const Pass& pass, DropoutKind kind, size_t layer);

// y = dropout(x), or add + dropout(x), all of shape [N, C]; does nothing without dropout
void drop(const Pass& pass, ApplyDropout op);

}  // namespace tessera
