// The losses of pairs of documents (kernels/preference.h) as a rule of the head.
#pragma once

#include <cstdint>

#include "model/losses/loss_rule.h"
#include "model/model.h"

namespace tessera {

// Where the reference is computed once, its log-probabilities come with the batch: no model computes them.
enum class ReferenceFrom : uint8_t { kModel, kBatch };
LossRule preference_loss(const PreferenceRule& rule, ReferenceFrom reference = ReferenceFrom::kModel);

// The divergence that kto subtracts is a mean over the step, which is needed before the first backward: a
// forward of all micro-batches that comes before finds it.
struct MeasuredDivergence {
  const Model& model;
  const Batch& batch;
  const Tensor& sum;  // [1] fp32, of this batch, written
};
void measure_divergence(const Stream& stream, Arena& arena, const MeasuredDivergence& of);

}  // namespace tessera
