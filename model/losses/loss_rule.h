// LossRule: the loss that a training minimises. The head (model/head.h) asks it for the losses of rows and
// for their gradients, a chunk of rows at a time.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "kernels/stream.h"

namespace tessera {

struct Pass;   // model/model.h
struct Saved;  // model/saved_tensors.h

// n rows of a batch
struct LossRows {
  Tensor targets;         // [n] int32, or kNoTarget
  Tensor weights;         // [n] fp32, factors of their losses; none: 1
  Tensor gradient_scale;  // [1] fp32; none: 1
  Tensor losses;          // [n] fp32, written: 0 where there is no target
  int64_t vocab_size;
};

// Rows with their logits
struct LogitRows {
  LossRows rows;
  Tensor logits;  // [n, padded V]
  bool trains;    // whether logits are overwritten by the gradient of
                  // gradient_scale (sum of losses)
  // In training, for a rule with a teacher: its logits [n, its padded V], or those that the batch has
  Tensor teacher = {}, teacher_ids = {}, teacher_logits = {};
  float cap = 0;  // as in CrossEntropy
  Fp8Output fp8_gradient = {};
};

// Rows before their logits are computed: run_fused computes logits, losses and gradients in one
struct HiddenRows {
  LossRows rows;
  Tensor x;        // [n, C], overwritten by its gradient
  Tensor weight;   // [padded V, C] of the classifier
  Tensor dweight;  // its gradient
  Tensor logits;   // [n, padded V]: scratch
  Tensor scratch;  // [n, C]
  bool accumulate;
};

struct LossRule {
  std::string name;
  std::function<void(const Stream& stream, const LogitRows& rows)> run;
  std::function<void(Arena& arena, const Stream& stream, const HiddenRows& rows)> run_fused =
      {};  // none: run() is used
  // Returns the weights of a training batch's rows, [N] fp32 in memory of the caller's scope; none: the rows
  // have the batch's weights. It is called between the forward and the first gradient. It may compute losses
  // of the pass (head_losses() without gradients) and of the model's reference (evaluate_batch()).
  std::function<Tensor(Arena& arena, const Pass& pass, const Saved& saved)> weights = {};
  bool needs_reference = false;   // needs Model::reference, unless the reference's numbers come with the
                                  // batch:
  bool stored_reference = false;  // see Batch::log_probs
  // Set if its losses are of pairs of documents (Batch::kinds, figures); the number by which they are divided
  // then counts pairs. In a training batch, row 0 of the figures replaces the losses of rows that the head
  // has written.
  std::optional<PreferenceRule> pairs = {};
  // If it needs Model::teacher: returns the rows from which the teacher's logits are computed, [N, its C], in
  // memory of the caller's scope
  std::function<Tensor(Arena& arena, const Pass& pass)> teacher_rows = {};
  int64_t teacher_logits = 0;  // K of Batch::teacher_ids, if the teacher's logits come with the batch
};

// Terms that are added to the loss of a row, see CrossEntropy
struct CrossEntropyExtras {
  double z_loss = 0, label_smoothing = 0;
};
// losses = -log softmax(logits)[targets]
LossRule cross_entropy(const CrossEntropyExtras& extras = {});

}  // namespace tessera
