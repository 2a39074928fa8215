// The weights of the MLP: expand, activate, contract, which adds to the residual stream. GELU, ReLU and the
// square of ReLU act on the hidden layer itself; a gated MLP computes a gate and an up projection in one GEMM
// and multiplies silu(gate) or GELU(gate) by up (SwiGLU, GeGLU: Shazeer, arXiv:2002.05202). Its stages are in
// model/stages/mlp.cpp.
#pragma once

#include <optional>

#include "model/block_spec.h"
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

inline LayerParts expand_matrices(const ModelConfig& config, const BlockSpec& spec) {
  const int64_t F = config.mlp_width;
  return spec.gated() ? LayerParts{F, F} : LayerParts{F};
}
inline LayerParts expand_layers(const ModelConfig& config, const BlockSpec& spec) {  // of adapters
  const auto [gate, up, none] = expand_matrices(config, spec);
  return config.lora.split_qkv ? LayerParts{gate, up} : LayerParts{gate + up};
}

template <class W, class V>
void visit_mlp_weights(W& mlp, const ModelConfig& config, const BlockSpec& spec, const V& visitor) {
  const int64_t C = config.channels, F = config.mlp_width;
  const bool bias = config.has_mlp_bias();
  visitor.linear("expand", expand_matrices(config, spec), C, Init::kNormal, bias, mlp.expand,
                 expand_layers(config, spec));
  visitor.linear("contract", {C}, F, Init::kNormalResidual, bias, mlp.contract);
}

Activation activation_of(Mlp mlp);  // Error: a gated MLP has none of its own
Gate gate_of(Mlp mlp);              // Error: the MLP is not gated
// Of the expanding layer in a decode step; none: no operation computes it
std::optional<FusedLinear::Epilogue> epilogue_of(Mlp mlp);

}  // namespace tessera
