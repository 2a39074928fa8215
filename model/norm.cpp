#include "model/norm.h"

namespace tessera {

void norm_forward(const Stream& stream, const ModelConfig& config, const NormWeights& w, const Tensor& x,
                  const NormSaved& s, const Fp8Output& fp8_y) {
  if (config.norm == NormKind::kRmsNorm)
    return stream.run(RmsNormForward{.x = x,
                                     .weight = w.weight,
                                     .y = s.y,
                                     .rstd = s.rstd,
                                     .epsilon = config.norm_epsilon,
                                     .fp8_y = fp8_y});
  stream.run(LayerNormForward{.x = x,
                              .weight = w.weight,
                              .bias = w.bias,
                              .y = s.y,
                              .mean = s.mean,
                              .rstd = s.rstd,
                              .epsilon = config.norm_epsilon,
                              .fp8_y = fp8_y});
}

void norm_first(const ModelConfig& config, const NormWeights& w, const NormSaved& s, FusedLinear& linear) {
  linear.norm_weight = w.weight, linear.norm_bias = w.bias;
  linear.epsilon = config.norm_epsilon;
  linear.normed = s.y, linear.mean = s.mean, linear.rstd = s.rstd;
}

void norm_backward(const Stream& stream, const ModelConfig& config, const NormWeights& w, const Tensor& x,
                   const NormSaved& s, const NormWeights& gradients, const Tensor& dx, const Tensor& add,
                   const Tensor& dx_sum, const Fp8Output& fp8_dx, bool accumulate) {
  if (config.norm == NormKind::kRmsNorm)
    return stream.run(RmsNormBackward{.dy = s.y,
                                      .x = x,
                                      .weight = w.weight,
                                      .rstd = s.rstd,
                                      .dx = dx,
                                      .dweight = gradients.weight,
                                      .add = add,
                                      .dx_sum = dx_sum,
                                      .accumulate = accumulate,
                                      .fp8_dx = fp8_dx});
  stream.run(LayerNormBackward{.dy = s.y,
                               .x = x,
                               .weight = w.weight,
                               .mean = s.mean,
                               .rstd = s.rstd,
                               .dx = dx,
                               .dweight = gradients.weight,
                               .dbias = gradients.bias,
                               .add = add,
                               .dx_sum = dx_sum,
                               .accumulate = accumulate,
                               .fp8_dx = fp8_dx});
}

}  // namespace tessera
