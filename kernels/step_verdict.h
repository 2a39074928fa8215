// Whether a training step may update the weights, by its loss and the norm of its gradients. The host and
// devices share this comparison.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/base/host_device.h"

namespace tessera {

// The values of JudgeStep::verdict
enum class StepVerdict : int8_t {
  kAbove = -1,     // the loss or the norm is finite and above its limit
  kNotFinite = 0,  // the loss or the norm is not finite
  kUpdate = 1      // neither: the step may update the weights
};

template <class Real>
TESSERA_HOST_DEVICE StepVerdict judge_step(Real loss, Real norm, Real loss_limit, Real norm_limit) {
  return !std::isfinite(loss) || !std::isfinite(norm) ? StepVerdict::kNotFinite
         : loss > loss_limit || norm > norm_limit     ? StepVerdict::kAbove
                                                      : StepVerdict::kUpdate;
}

}  // namespace tessera
