#include "model/norm.h"

namespace tessera {

void norm_forward(const Stream& stream, const Norm& n, const Fp8Output& fp8_y) {
  if (n.kind == NormKind::kRmsNorm)
    return stream.run(RmsNormForward{.x = n.x,
                                     .weight = n.weights.weight,
                                     .y = n.saved.y,
                                     .rstd = n.saved.rstd,
                                     .epsilon = n.epsilon,
                                     .offset = n.offset,
                                     .fp8_y = fp8_y});
  stream.run(LayerNormForward{.x = n.x,
                              .weight = n.weights.weight,
                              .bias = n.weights.bias,
                              .y = n.saved.y,
                              .mean = n.saved.mean,
                              .rstd = n.saved.rstd,
                              .epsilon = n.epsilon,
                              .fp8_y = fp8_y});
}

void norm_backward(const Stream& stream, const Norm& n, const NormBackward& backward) {
  if (n.kind == NormKind::kRmsNorm)
    return stream.run(RmsNormBackward{.dy = n.saved.y,
                                      .x = n.x,
                                      .weight = n.weights.weight,
                                      .rstd = n.saved.rstd,
                                      .offset = n.offset,
                                      .dx = backward.dx,
                                      .dweight = backward.gradients.weight,
                                      .add = backward.add,
                                      .dx_sum = backward.dx_sum,
                                      .accumulate = backward.accumulate,
                                      .fp8_dx = backward.fp8_dx});
  stream.run(LayerNormBackward{.dy = n.saved.y,
                               .x = n.x,
                               .weight = n.weights.weight,
                               .mean = n.saved.mean,
                               .rstd = n.saved.rstd,
                               .dx = backward.dx,
                               .dweight = backward.gradients.weight,
                               .dbias = backward.gradients.bias,
                               .add = backward.add,
                               .dx_sum = backward.dx_sum,
                               .accumulate = backward.accumulate,
                               .fp8_dx = backward.fp8_dx});
}

void put_norm_in(const Norm& n, FusedLinear& linear) {
  linear.norm_weight = n.weights.weight, linear.norm_bias = n.weights.bias;
  linear.epsilon = n.epsilon;
  linear.normed = n.saved.y, linear.mean = n.saved.mean, linear.rstd = n.saved.rstd;
}

std::string norm_not_in_decode(const ModelConfig& config) {
  return config.norm_plus_one ? "norms that multiply by 1 + weight" : "";
}

}  // namespace tessera
