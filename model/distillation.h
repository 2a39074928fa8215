// The loss of a teacher's probabilities (Distillation in kernels/ops.h) as a rule of the head.
#pragma once

#include "model/losses/loss_rule.h"

namespace tessera {

struct DistillationRule {
  double temperature = 1, cross_entropy = 0;
};
// An evaluation computes cross entropy.
LossRule distillation(const DistillationRule& rule);

}  // namespace tessera
