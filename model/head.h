// The head: the final norm, the logits, and the losses and gradients of the model's LossRule.
#pragma once

#include "model/model.h"
#include "model/saved_tensors.h"

namespace tessera {

void final_norm_forward(const Pass& pass, const Saved& saved);

// Logits [rows, padded V] of rows of saved.norm.y
struct Logits {
  const Model& model;
  Tensor rows, logits;
};
void logits_forward(const Stream& stream, const Logits& logits);
// In place, if the model has a cap
void cap_logits(const Stream& stream, const ModelConfig& config, const Tensor& logits);
// The logits of a decode step, which include the final norm; they are not capped yet
struct DecodeLogits {
  const Model& model;
  const HeadParams& weights;  // from a lease of the model
  const Saved& saved;
  Tensor logits;
};
FusedLinear decode_logits(const DecodeLogits& step);

struct HeadLosses {
  const Saved& saved;
  Tensor losses;  // [N] fp32, 0 where there is no target
  // For training: where the gradients of the head go, and those of the last block, if there is one; the scale
  // [1] fp32; and d [N, C], which gets the gradient of the last block's output. saved.norm.y is then
  // overwritten by its gradient.
  const HeadParams* gradients = nullptr;
  const BlockParams* below = nullptr;
  Tensor gradient_scale = {}, d = {};
};
void head_losses(Arena& arena, const Pass& pass, const HeadLosses& head);

}  // namespace tessera
