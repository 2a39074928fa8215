// The MLP: expand, activate, contract, which adds to the residual stream. GELU and ReLU act on the hidden
// layer itself; a gated MLP computes a gate and an up projection in one product and multiplies silu(gate) by
// up (SwiGLU: Shazeer, arXiv:2002.05202).
#pragma once

#include "model/lora.h"

namespace tessera {

struct MlpWeights {
  LinearWeights expand;    // [F, C]; gated: [2F, C], the gate's rows first
  LinearWeights contract;  // [C, F]
};

struct MlpSaved {
  Tensor expand_adapter, contract_adapter;  // [N, P r]: see LoraForward; only with an adapter
  Tensor pre_activation;                    // [N, F]; gated: [N, 2F]
  Tensor hidden;                            // [N, F]
};

inline Stage activation_stage(const ModelConfig& config) {
  return config.gated() ? Stage::kActivation : Stage::kExpand;
}

inline LayerParts expand_layers(const ModelConfig& config) {
  const int64_t F = config.mlp_width;
  return config.gated() ? LayerParts{F, F} : LayerParts{F};
}

template <class W, class V>
void visit_mlp_weights(W& mlp, const ModelConfig& config, const V& visitor) {
  const int64_t C = config.channels, F = config.mlp_width;
  const bool bias = config.has_mlp_bias();
  visitor.linear("expand", expand_layers(config), C, Init::kNormal, bias, mlp.expand);
  visitor.linear("contract", {C}, F, Init::kNormalResidual, bias, mlp.contract);
}

template <class S, class Visit>
void visit_mlp_saved(S& mlp, const ModelConfig& config, int64_t N, DType dtype, Visit&& visit) {
  const int64_t F = config.mlp_width, rank = config.lora.rank;
  const bool adapted = config.lora.adapts(Adapted::kMlp);
  if (adapted)
    visit(SavedInfo{Stage::kExpand,
                    "adapter of the MLP's first layer",
                    dtype,
                    {N, count_of(expand_layers(config)) * rank}},
          mlp.expand_adapter);
  visit(SavedInfo{Stage::kExpand,
                  config.gated() ? "MLP gate and up" : "MLP pre-activation",
                  dtype,
                  {N, config.gated() ? 2 * F : F}},
        mlp.pre_activation);
  visit(SavedInfo{activation_stage(config), "MLP hidden layer", dtype, {N, F}}, mlp.hidden);
  if (adapted)
    visit(SavedInfo{Stage::kContract, "adapter of the MLP's second layer", dtype, {N, rank}},
          mlp.contract_adapter);
}

// In FP8 (fp8_linear.h): `fp8_x` of a layer is its x where that has been rounded, and `fp8_hidden` gets the
// hidden layer. Any of them may be none.
void expand_forward(const Stream& stream, const ModelConfig& config, const MlpWeights& w, const Tensor& x,
                    const MlpSaved& s, const Fp8Matrix& fp8_x, const Fp8Output& fp8_hidden);
// expand_forward() and activation_forward() as one operation, of the norm of `x`
FusedLinear fused_expand(const ModelConfig& config, const MlpWeights& w, const Tensor& x, const MlpSaved& s);
void activation_forward(const Stream& stream, const ModelConfig& config, const MlpSaved& s,
                        const Fp8Output& fp8_hidden);
// y = add + contract(hidden); without `add`, that alone
void contract_forward(const Stream& stream, const ModelConfig& config, const MlpWeights& w, const MlpSaved& s,
                      const Tensor& add, const Tensor& y, const Fp8Matrix& fp8_x = {});

// From `dy`, the gradient of contract_forward's y, to that of x, which overwrites x. Overwrites s. `fp8_dy`
// is dy where that has been rounded, or none.
void mlp_backward(const Stream& stream, const ModelConfig& config, const MlpWeights& w, const MlpSaved& s,
                  const MlpWeights& gradients, const WriteGradients& write, const Tensor& dy,
                  const Fp8Matrix& fp8_dy, const Tensor& x);

}  // namespace tessera
