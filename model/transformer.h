// A transformer made of parts: embeddings, L blocks of attention and MLP on a residual stream, a norm, logits
// by the token table or a head of their own. By ModelConfig it computes what transformers' GPT2LMHeadModel,
// LlamaForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM compute.
//
// Allocation: every function allocates its memory in a Scope of its own and releases it, except
// allocate_saved(), whose tensors live as long as the caller's Scope.
#pragma once

#include <functional>

#include "kernels/stream.h"
#include "model/dropout.h"
#include "model/params.h"
#include "model/saved.h"

namespace tessera {

// One batch: rows of T tokens and, for each, the token that follows, or kNoTarget: its loss does not count.
struct Batch {
  Tensor tokens, targets;  // [B, T] int32; forward() needs no targets
  Tensor documents = {};   // [B, T, 2] int32, see ops.h: where the plan's mask has documents, and only there
  const KvCache* cache = nullptr;  // of B slots, whose texts the batch continues: see decode.h
};

// A model at a batch size, ready to run: everything that stays the same from step to step.
struct Model {
  ModelConfig config;
  Params params;       // dtype of the activations too
  AttentionPlan plan;  // carries B and T; its scale is 1 / sqrt(D), see attention_of()
  Tensor angles = {};  // [>= T, D / 2, 2] fp32, see rope.h; with rotary positions
  Keep keep = {};
  int64_t classifier_chunk = 0;           // rows of [N, padded V] logits that exist at a time; 0: all N
  bool fused_head = false;                // trains by HeadLoss, if the classifier is trained and not in FP8
  std::optional<DecodePlan> decode = {};  // attention in place of the plan's: see decode.h

  // With the scale of this block's scores
  AttentionSettings attention_of(size_t layer, const ActiveDropout& dropout, const Batch& batch) const;
};

// Called with a layer: a block, -1 for the embeddings, L for the final norm.
using OnLayer = std::function<void(int64_t layer)>;

struct LayerHooks {
  OnLayer before_forward = {};  // before the weights of the layer are first read
  OnLayer after_backward = {};  // after the last gradient of the layer
};

// Fills `saved`; saved.norm.y [N, C] is what the logits are computed from.
void forward(const Stream& stream, const Model& model, const Batch& batch, const Saved& saved,
             const ActiveDropout& dropout = {}, const OnLayer& before_layer = {});

// Logits [rows, padded V] of some rows of saved.norm.y.
void logits_forward(const Stream& stream, const Model& model, const Tensor& rows, const Tensor& logits);

// Losses [N] fp32 of a batch, 0 where there is no target. Computes no gradient, drops nothing.
void evaluate_batch(const Stream& stream, Arena& arena, const Model& model, const Batch& batch,
                    const Tensor& losses);

// Forward and backward of one micro-batch: losses [N], and the gradients of their sum, times gradient_scale
// ([1] fp32), added to `grads`; or without `accumulate` in their place, whatever they were before. What no
// backward writes stays as it is: the gaps between parameters, and gradients that are always 0. So `grads`
// begin as zeros.
// With dropout, the losses are those of what it keeps.
void train_batch(const Stream& stream, Arena& arena, const Model& model, const Batch& batch,
                 const Tensor& gradient_scale, const Tensor& losses, const Grads& grads,
                 const ActiveDropout& dropout = {}, const LayerHooks& hooks = {}, bool accumulate = true);

}  // namespace tessera
