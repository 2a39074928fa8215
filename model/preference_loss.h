// The losses of pairs of documents (kernels/preference.h) as a LossRule.
#pragma once

#include <cstdint>

#include "model/losses/loss_rule.h"
#include "model/model.h"

namespace tessera {

// Where the reference's log-probabilities come from: a model computes them, or they are stored and come with
// the batch.
enum class ReferenceFrom : uint8_t { kModel, kBatch };
LossRule preference_loss(const PreferenceRule& rule, ReferenceFrom reference = ReferenceFrom::kModel);

// kto subtracts a divergence that is a mean over the step, and it is needed before the first backward. If a
// step has several micro-batches, a forward of each of them runs before and finds it.
struct MeasuredDivergence {
  const Model& model;
  const Batch& batch;
  const Tensor& sum;  // [1] fp32, written: the sum over this batch
};
void measure_divergence(const Stream& stream, Arena& arena, const MeasuredDivergence& of);

}  // namespace tessera
