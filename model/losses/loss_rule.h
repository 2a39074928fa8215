// LossRule: the loss that a training makes small. The head (model/head.h) asks it for the losses of rows and
// for their gradients, a chunk of rows at a time.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "kernels/stream.h"

namespace tessera {

struct Pass;   // model/model.h
struct Saved;  // model/saved_tensors.h

// n of a batch's rows
struct LossRows {
  Tensor targets;         // [n] int32, or kNoTarget
  Tensor weights;         // [n] fp32, of their losses; none: 1
  Tensor gradient_scale;  // [1] fp32; none: 1
  Tensor losses;          // [n] fp32, written: 0 where there is no target
  int64_t vocab_size;
};

// Rows with their logits
struct LogitRows {
  LossRows rows;
  Tensor logits;  // [n, padded V]
  bool trains;    // logits are overwritten by the gradient of
                  // gradient_scale (sum of losses)
  // In training, of a rule with a teacher: its logits [n, its padded V], or what the batch has of them
  Tensor teacher = {}, teacher_ids = {}, teacher_logits = {};
  float cap = 0;  // as CrossEntropy's
  Fp8Output fp8_gradient = {};
};

// Rows with what their logits are made of: logits, losses and gradients in one
struct HiddenRows {
  LossRows rows;
  Tensor x;        // [n, C], overwritten by its gradient
  Tensor weight;   // [padded V, C] of the classifier
  Tensor dweight;  // its gradient
  Tensor logits;   // [n, padded V]: memory
  Tensor scratch;  // [n, C]: memory
  bool accumulate;
};

struct LossRule {
  std::string name;
  std::function<void(const Stream& stream, const LogitRows& rows)> run;
  std::function<void(Arena& arena, const Stream& stream, const HiddenRows& rows)> run_fused =
      {};  // none: run()
  // The weights of a training batch's rows, [N] fp32 in memory of the caller's scope; none: the batch's.
  // Called between the forward and the first gradient: it may compute losses of the pass (head_losses()
  // without gradients) and of its model's reference (evaluate_batch()).
  std::function<Tensor(Arena& arena, const Pass& pass, const Saved& saved)> weights = {};
  bool needs_reference = false;   // see Model::reference; not where its numbers come with the batch:
  bool stored_reference = false;  // see Batch::log_probs
  // Its losses are of pairs of documents (Batch::kinds, figures), and so is the count that they are divided
  // by. In a training batch the losses of rows, which the head has written, give way to row 0 of the figures.
  std::optional<PreferenceRule> pairs = {};
  // With Model::teacher: the rows that the teacher's logits are made of, [N, its C], likewise
  std::function<Tensor(Arena& arena, const Pass& pass)> teacher_rows = {};
  int64_t teacher_logits = 0;  // K of Batch::teacher_ids, where the teacher's logits come with the batch
};

// What is added to the loss of a row, see CrossEntropy
struct CrossEntropyExtras {
  double z_loss = 0, label_smoothing = 0;
};
// losses = -log softmax(logits)[targets]
LossRule cross_entropy(const CrossEntropyExtras& extras = {});

}  // namespace tessera
