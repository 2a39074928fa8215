// The weights of a mixture of experts: a router, and of each expert a gated MLP as in mlp.h. With biases
// all of these layers have one. Every token may go through a shared expert as well: what it adds is
// multiplied by a sigmoid of a logit of its own. The stages are in model/stages/experts.cpp.
#pragma once

#include "model/lora.h"

namespace tessera {

struct ExpertsWeights {
  LinearWeights router;    // [E, C], bias [E]
  LinearWeights expand;    // [E, 2 F, C], the gates' rows first; bias [E, 2 F]
  LinearWeights contract;  // [E, C, F], bias [E, C]
  LinearWeights shared_gate, shared_expand, shared_contract;  // [1, C] [2 S, C] [C, S], without biases
};

// R = N k rows, see expert_ops.h. What a token chooses is never computed again: so a backward goes through
// the experts of its forward, whatever attention's arithmetic.
struct ExpertsSaved {
  Tensor logits;                 // [N, E] fp32
  Tensor choices, weights;       // [N, k] int32, fp32; the backward writes the weights' gradients there
  Tensor offsets, rows, places;  // [E + 1] [R] [N, k] int32
  Tensor gate_up;                // [R, 2 F]
  Tensor hidden;                 // [R, F]
  // Of the shared expert. Its backward writes the gradient of what it reads to shared_y.
  Tensor shared_logit;             // [N, 1] fp32
  Tensor shared_gate_up;           // [N, 2 S]
  Tensor shared_hidden, shared_y;  // [N, S] [N, C]
  // As MlpSaved's, where there are adapters: [N, r] of a router, [R, r] of experts
  Tensor router_adapter, shared_gate_adapter, expand_adapter, contract_adapter;
  Tensor shared_expand_adapter, shared_contract_adapter;
};

// What a training adds to its loss for the routers, as ChooseExpertsBackward has it
struct RouterLosses {
  double balance = 0, z = 0;  // b, z

  bool operator==(const RouterLosses&) const = default;
};

}  // namespace tessera
