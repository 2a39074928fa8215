// An update rule with other state than AdamW's: SGD with momentum, in plain loops on the CPU.
#pragma once

#include "model/update_rule.h"

namespace tessera::testing {

inline UpdateRule momentum_rule() {
  return {.name = "sgd with momentum",
          .groups = {{.has = is_any,
                      .state = {{"momentum", DType::kF32}},
                      .run = [](const Stream&, std::span<const UpdatedPart> parts, const UpdateStep& step) {
                        for (const UpdatedPart& part : parts)
                          for (int64_t i = 0; part.weights.data && i < part.weights.numel(); ++i) {
                            float& momentum = part.state[0].as<float>()[i];
                            momentum = static_cast<float>(step.config.beta1) * momentum +
                                       part.gradient.as<float>()[i];
                            part.weights.as<float>()[i] -= static_cast<float>(step.learning_rate) * momentum;
                          }
                      }}}};
}

}  // namespace tessera::testing
