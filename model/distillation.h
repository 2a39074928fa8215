// The loss of a teacher's probabilities (Distillation in kernels/ops.h) as a rule of the head.
#pragma once

#include "model/losses/loss_rule.h"

namespace tessera {

struct DistillationRule {
  double temperature = 1, cross_entropy = 0, reverse = 0;  // shares of the loss, and of the divergence
};
// An evaluation computes cross entropy. `largest`: so many of the teacher's logits come with each row of a
// batch; 0: Model::teacher computes them.
LossRule distillation(const DistillationRule& rule, int64_t largest = 0);

}  // namespace tessera
