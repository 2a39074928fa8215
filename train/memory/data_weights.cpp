#include "train/memory/data_weights.h"

namespace tessera {

RunPlan with_weights(RunPlan plan, bool weights) {
  if (plan.shape.weights == weights) return plan;
  plan.shape.weights = weights;
  plan.memory = plan_stages(plan.shape, plan.device);
  return plan;
}

}  // namespace tessera
