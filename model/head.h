// The head: the final norm, the logits, the losses and their gradients.
#pragma once

#include "model/model.h"
#include "model/saved_tensors.h"

namespace tessera {

void final_norm_forward(const Pass& pass, const Saved& saved);

// Logits [rows, padded V] of rows of saved.norm.y
struct Logits {
  const Model& model;
  Tensor rows, logits;
  Fp8Matrix fp8_rows = {};  // the rows in FP8, where they have been rounded
};
void logits_forward(const Stream& stream, const Logits& logits);
// The logits of a decode step, with the final norm in them
FusedLinear decode_logits(const Model& model, const Saved& saved, const Tensor& logits);

struct HeadLosses {
  const Saved& saved;
  Tensor losses;  // [N] fp32, 0 where there is no target
  // Where the pass has gradients: [1] fp32, and [N, C], which gets the gradient of the last block's output.
  // saved.norm.y is then overwritten by its gradient.
  Tensor gradient_scale = {}, d = {};
};
void head_losses(Arena& arena, const Pass& pass, const HeadLosses& head);

}  // namespace tessera
