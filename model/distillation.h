// The loss that trains on a teacher's probabilities (Distillation in kernels/ops.h), as a LossRule.
#pragma once

#include "model/losses/loss_rule.h"

namespace tessera {

struct DistillationRule {
  double temperature = 1, cross_entropy = 0, reverse = 0;  // the last two are shares: see Distillation
};
// Evaluations compute cross entropy. `largest`: how many of the teacher's logits come with each row of a
// batch; 0: Model::teacher computes all of them.
LossRule distillation(const DistillationRule& rule, int64_t largest = 0);

}  // namespace tessera
