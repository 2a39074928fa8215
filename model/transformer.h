// A transformer made of parts: embeddings, L blocks of attention and MLP on a residual stream, a norm, logits
// by the token table or a head of their own. By ModelConfig it computes what transformers' GPT2LMHeadModel,
// LlamaForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM compute.
//
// Allocation: every function allocates its memory in a Scope of its own and releases it, except
// allocate_saved(), whose tensors live as long as the caller's Scope.
#pragma once

#include <functional>

#include "model/head.h"
#include "model/model.h"
#include "model/saved.h"

namespace tessera {

// Fills `saved`; saved.norm.y [N, C] is what the logits are computed from.
struct ForwardOf {
  const Model& model;
  const Batch& batch;
  const Saved& saved;
  ActiveDropout dropout = {};
  Tensor choice_counts = {};  // see Pass
};
void forward(const Stream& stream, const ForwardOf& of);

// Losses [N] fp32 of a batch, 0 where there is no target. Computes no gradient, drops nothing.
struct EvaluateBatch {
  const Model& model;
  const Batch& batch;
  Tensor losses;
};
void evaluate_batch(const Stream& stream, Arena& arena, const EvaluateBatch& evaluated);

// A forward of a batch that adds how often each expert is chosen to counts [E] int32.
struct CountChoices {
  const Model& model;
  const Batch& batch;
  ActiveDropout dropout;
  Tensor counts;
};
void count_choices(const Stream& stream, Arena& arena, const CountChoices& counted);

// Forward and backward of one micro-batch: losses [N], and the gradients of their sum, times gradient_scale
// ([1] fp32), added to those of the store; or without `accumulate` in their place, whatever they were before.
// What no backward writes stays as it is: the gaps between parameters, and gradients that are always 0. So
// gradients begin as zeros. Their scopes end in the order of the backward: head, last block to first, tables.
// With dropout, the losses are those of what it keeps.
struct TrainBatch {
  const Model& model;
  const Batch& batch;
  Tensor gradient_scale, losses;
  ActiveDropout dropout = {};
  bool accumulate = true;
  Tensor choice_counts = {};  // see Pass, as the next
  Tensor largest_scores = {};
  std::function<void()> after_forward = {};  // called before the first gradient
  const Probe* probe = nullptr;              // null: none
};
void train_batch(const Stream& stream, Arena& arena, const TrainBatch& trained);

}  // namespace tessera
