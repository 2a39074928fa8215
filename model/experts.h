// The weights of a mixture of experts: a router, and for each expert a gated MLP as in mlp.h. Either all of
// these layers have a bias or none has. There may also be a shared expert that every token goes through; what
// it adds is multiplied by the sigmoid of a logit of its own. The stages are in model/stages/experts.cpp.
#pragma once

#include "model/lora.h"

namespace tessera {

struct ExpertsWeights {
  LinearWeights router;    // [E, C], bias [E]
  LinearWeights expand;    // [E, 2 F, C], the gates' rows first; bias [E, 2 F]
  LinearWeights contract;  // [E, C, F], bias [E, C]
  LinearWeights shared_gate, shared_expand, shared_contract;  // [1, C] [2 S, C] [C, S], without biases
};

// R = N k rows, see expert_ops.h. The choices of a token are never computed again, so a backward always uses
// the experts of its forward, even if attention is computed again with another rounding.
struct ExpertsSaved {
  Tensor logits;                 // [N, E] fp32
  Tensor choices, weights;       // [N, k] int32, and fp32; the backward overwrites the weights by their
                                 // gradients
  Tensor offsets, rows, places;  // [E + 1] [R] [N, k] int32
  Tensor gate_up;                // [R, 2 F]
  Tensor hidden;                 // [R, F]
  // For the shared expert. Its backward writes the gradient of its input to shared_y.
  Tensor shared_logit;             // [N, 1] fp32
  Tensor shared_gate_up;           // [N, 2 S]
  Tensor shared_hidden, shared_y;  // [N, S] [N, C]
  // For adapters, as in MlpSaved: [N, r] for a router, [R, r] for experts
  Tensor router_adapter, shared_gate_adapter, expand_adapter, contract_adapter;
  Tensor shared_expand_adapter, shared_contract_adapter;
};

// The losses of routers that a training adds to its loss, see ChooseExpertsBackward
struct RouterLosses {
  double balance = 0, z = 0;  // factors of the two losses: b, z

  bool operator==(const RouterLosses&) const = default;
};

}  // namespace tessera
