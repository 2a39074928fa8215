// The losses of pairs of documents (kernels/preference.h) as a rule of the head.
#pragma once

#include <cstdint>

#include "model/losses/loss_rule.h"

namespace tessera {

// Where the reference is computed once, its log-probabilities come with the batch: no model computes them.
enum class ReferenceFrom : uint8_t { kModel, kBatch };
LossRule preference_loss(const PreferenceRule& rule, ReferenceFrom reference = ReferenceFrom::kModel);

}  // namespace tessera
