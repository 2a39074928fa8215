#include "model/mlp.h"

#include "kernels/base/check.h"

namespace tessera {
namespace {

Activation activation_of(Mlp mlp) {
  switch (mlp) {
    case Mlp::kGelu:
      return Activation::kGelu;
    case Mlp::kGeluExact:
      return Activation::kGeluExact;
    case Mlp::kRelu:
      return Activation::kRelu;
    case Mlp::kSwiglu:
      break;
  }
  fail("a gated MLP has no activation of its own");
}

FusedLinear::Epilogue epilogue_of(Mlp mlp) {
  switch (mlp) {
    case Mlp::kGelu:
      return FusedLinear::Epilogue::kGelu;
    case Mlp::kGeluExact:
      return FusedLinear::Epilogue::kGeluExact;
    case Mlp::kRelu:
      return FusedLinear::Epilogue::kRelu;
    case Mlp::kSwiglu:
      return FusedLinear::Epilogue::kSwiglu;
  }
  fail("no such MLP");
}

}  // namespace

void expand_forward(const Stream& stream, const ModelConfig& config, const MlpWeights& w, const Tensor& x,
                    const MlpSaved& s, const Fp8Matrix& fp8_x, const Fp8Output& fp8_hidden) {
  LinearForward product{.x = x,
                        .weight = w.expand.weight,
                        .y = config.gated() ? s.pre_activation : s.hidden,
                        .bias = w.expand.bias,
                        .fp8_x = fp8_x};
  if (!config.gated()) {
    product.pre_activation = s.pre_activation, product.activation = activation_of(config.mlp);
    product.fp8_y = fp8_hidden;
  }
  linear_forward(stream, config, w.expand, expand_layers(config), s.expand_adapter, product);
}

FusedLinear fused_expand(const ModelConfig& config, const MlpWeights& w, const Tensor& x, const MlpSaved& s) {
  return {.x = x,
          .weight = w.expand.weight,
          .y = s.hidden,
          .bias = w.expand.bias,
          .activation = epilogue_of(config.mlp),
          .sums = s.pre_activation};
}

void activation_forward(const Stream& stream, const ModelConfig& config, const MlpSaved& s,
                        const Fp8Output& fp8_hidden) {
  if (config.gated())
    stream.run(SwigluForward{.gate_up = s.pre_activation, .y = s.hidden, .fp8_y = fp8_hidden});
}

void contract_forward(const Stream& stream, const ModelConfig& config, const MlpWeights& w, const MlpSaved& s,
                      const Tensor& add, const Tensor& y, const Fp8Matrix& fp8_x) {
  linear_forward(stream, config, w.contract, {config.channels}, s.contract_adapter,
                 {.x = s.hidden,
                  .weight = w.contract.weight,
                  .y = y,
                  .bias = w.contract.bias,
                  .add = add,
                  .fp8_x = fp8_x});
}

// An input of a linear layer that is not read again is overwritten by its gradient.
void mlp_backward(const Stream& stream, const ModelConfig& config, const MlpWeights& w, const MlpSaved& s,
                  const MlpWeights& gradients, const WriteGradients& write, const Tensor& dy,
                  const Fp8Matrix& fp8_dy, const Tensor& x) {
  const Tensor& d_expanded = config.gated() ? s.pre_activation : s.hidden;
  const Fp8Output fp8_d_expanded = w.expand.fp8.dy_output(d_expanded);
  LinearBackward contract{.dy = dy,
                          .x = s.hidden,
                          .weight = w.contract.weight,
                          .dx = s.hidden,
                          .dweight = gradients.contract.weight,
                          .dbias = write.branch_bias ? gradients.contract.bias : Tensor{},
                          .fp8_dy = fp8_dy,
                          .accumulate = write.accumulate};
  if (!config.gated()) {
    contract.pre_activation = s.pre_activation, contract.activation = activation_of(config.mlp);
    contract.dx_sum = gradients.expand.bias;
    contract.fp8_dx = fp8_d_expanded;
  }
  linear_backward(stream, config, w.contract, gradients.contract, {config.channels}, s.contract_adapter,
                  contract);
  if (config.gated())
    stream.run(SwigluBackward{.dy = s.hidden,
                              .gate_up = s.pre_activation,
                              .d_gate_up = d_expanded,
                              .fp8_d_gate_up = fp8_d_expanded});
  linear_backward(stream, config, w.expand, gradients.expand, expand_layers(config), s.expand_adapter,
                  {.dy = d_expanded,
                   .x = x,
                   .weight = w.expand.weight,
                   .dx = x,
                   .dweight = gradients.expand.weight,
                   .dbias = config.gated() ? gradients.expand.bias : Tensor{},
                   .fp8_dy = fp8_d_expanded.y,
                   .accumulate = write.accumulate});
}

}  // namespace tessera
