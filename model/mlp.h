// The MLP: an expanding layer, an activation, and a contracting layer whose result is added to the residual
// stream. GELU, ReLU and the square of ReLU act on the hidden layer itself. A gated MLP computes a gate and
// an up projection in one GEMM, and multiplies silu(gate) or GELU(gate) by up (SwiGLU, GeGLU: Shazeer,
// arXiv:2002.05202). The stages are in model/stages/mlp.cpp.
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

Activation activation_of(Mlp mlp);  // Error: a gated MLP has none of its own
Gate gate_of(Mlp mlp);              // Error: the MLP is not gated
// The epilogue of a decode step's expanding layer; nullopt: no operation of a decode step computes this
// activation
std::optional<FusedLinear::Epilogue> epilogue_of(Mlp mlp);

}  // namespace tessera
