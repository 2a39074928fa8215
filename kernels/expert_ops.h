// The operations of a mixture of experts (Shazeer et al., arXiv:1701.06538). AnyOp in ops.h lists them.
//
// Shape letters besides those of ops.h: E experts, k of them for each token, R = N k rows, F their width.
//
// A token's choice number j of its k experts has the number n k + j, where n is the token. A row is a choice;
// rows are sorted by expert. The rows of expert e are offsets[e] to offsets[e + 1] - 1, in the order of the
// choices' numbers. So an expert may have no row, or a row of every token: no choice is dropped, and sums of
// rows have a fixed order.
#pragma once

#include "kernels/base/activation.h"
#include "kernels/base/router.h"
#include "kernels/base/tensor.h"
#include "kernels/fp8_matrix.h"

namespace tessera {

// logits = x weight^T + bias, in fp32 whatever the dtype of x is
struct RouterForward {
  static constexpr const char* kName = "router forward";
  Tensor x, weight;  // [N, C] [E, C]
  Tensor logits;     // [N, E] fp32
  Tensor bias = {};  // [E]; none: 0

  void check_on(Device device) const;
};
struct RouterBackward {
  static constexpr const char* kName = "router backward";
  Tensor d_logits;      // [N, E] fp32
  Tensor x, weight;     // [N, C] [E, C]
  Tensor dx;            // [N, C]; may be x itself: dweight is computed first
  Tensor dweight = {};  // [E, C], added to; none: the weight is frozen
  Tensor dbias = {};    // [E], added to; none: there is no bias, or it is frozen
  Tensor add = {};      // [N, C]: dx = add + ...; may be dx itself, which with dweight is not x
  bool accumulate = true;

  void check_on(Device device) const;
};

// Each token chooses the experts of its k largest logits; if logits are equal, the first ones. `rule` says
// how the weights are made. All of this is in fp32.
struct ChooseExperts {
  static constexpr const char* kName = "choose experts";
  static constexpr int64_t kMost = 64;  // k
  Tensor logits;                        // [N, E] fp32
  RouterRule rule;
  Tensor choices;  // [N, k] int32, by falling logits
  Tensor weights;  // [N, k] fp32

  void check_on(Device device) const;
};
// Two losses may be added to that of the model. A step has L layers and M tokens that count, over all ranks;
// these tokens chose expert e c[e] times, and p is the softmax of all logits of a token. Means are over the L
// M:
//   balance: b E sum_e (c[e] / (L M)) (the mean of p[e])
//   z:       z (the mean of log(sum_e exp(logits[e]))^2)
// The c add up to k L M.
struct ChooseExpertsBackward {
  static constexpr const char* kName = "choose experts backward";
  Tensor logits;     // [N, E] fp32, overwritten by its gradient
  Tensor choices;    // [N, k] int32
  Tensor d_weights;  // [N, k] fp32
  RouterRule rule;
  Tensor counts = {};   // [ranks, E] int32, whose sum over ranks is c
  Tensor counted = {};  // [N] int32: 0 for tokens that do not count; none: all do
  float balance = 0;    // b E; needs counts, as the next
  float z = 0;

  void check_on(Device device) const;
};

// Sorts the choices by their experts.
struct AssignExperts {
  static constexpr const char* kName = "assign experts";
  Tensor choices;       // [N, k] int32, each below E
  Tensor offsets;       // [E + 1] int32
  Tensor rows;          // [R] int32: the number of the choice that each row is
  Tensor places;        // [N, k] int32: the row of each choice
  Tensor counts = {};   // [E] int32, added to: how often tokens that count chose each expert
  Tensor counted = {};  // [N] int32, as ChooseExpertsBackward's; with counts

  void check_on(Device device) const;
};

// What a router does, for an observer: the rows of each expert, as a multiple of what an expert has on
// average, and the mean over the tokens of the entropy -sum p log p of the softmax of their logits, in nats.
struct RouterSample {
  static constexpr const char* kName = "router sample";
  Tensor logits;   // [N, E] fp32
  Tensor offsets;  // [E + 1] int32: AssignExperts::offsets
  Tensor loads;    // [E] fp32
  Tensor entropy;  // [1] fp32

  void check_on(Device device) const;
};

// y = x weight[e]^T + bias[e] for the rows of each expert e. The operand of row r is row r of x; with x_rows,
// it is the row of x that belongs to the token of row r.
struct ExpertsForward {
  static constexpr const char* kName = "experts forward";
  Tensor x, weight, y;  // [R, C], with x_rows [N, C]; [E, O, C]; [R, O]
  Tensor offsets;       // [E + 1] int32
  Tensor x_rows = {};   // [R] int32: AssignExperts::rows
  Tensor bias = {};     // [E, O]; none: 0
  // x and weight in e4m3: both or none. If they are given, these are multiplied
  Fp8Matrix fp8_x = {}, fp8_weight = {};

  int64_t active() const { return x_rows ? y.shape[0] / x.shape[0] : 1; }  // k
  void check_on(Device device) const;
};
// dx = dy weight[e],  dweight[e] += sum over its rows of w dy x^T,  dbias[e] += sum over its rows of w dy.
// With dy_rows, the operand dy of row r is the row of its token, and w is the weight of its choice; otherwise
// w is 1.
struct ExpertsBackward {
  static constexpr const char* kName = "experts backward";
  Tensor dy, x, weight;  // [R, O], with dy_rows [N, O]; [R, C], with x_rows [N, C]; [E, O, C]
  Tensor dx;             // [R, C]; may be x itself, if that has no x_rows: dweight is computed first
  Tensor dweight = {};   // [E, O, C], added to; none: the weights are frozen
  Tensor dbias = {};     // [E, O], added to; none: there are no biases, or they are frozen
  Tensor offsets;        // [E + 1] int32
  Tensor x_rows = {}, dy_rows = {};  // [R] int32: not both
  Tensor weights = {};               // [N, k] fp32: only and always with dy_rows
  // dy in e5m2, and weight[e]^T [E, C, O] in e4m3: both or none. If they are given, dx is computed from these
  Fp8Matrix fp8_dy = {}, fp8_weight = {};
  bool accumulate = true;

  int64_t active() const {  // k; 1 where no rows are gathered
    return x_rows ? dx.shape[0] / x.shape[0] : dy_rows ? dx.shape[0] / dy.shape[0] : 1;
  }
  void check_on(Device device) const;
};

// The backward of GatedForward for rows that are later multiplied by the weights of their choices. With h,
// the forward's y: the gradient of a choice's weight is the sum over f of dy h, and it replaces the weight.
// d_gate_up is that of GatedBackward for weight dy. If the next layer, whose results the weights multiply,
// has biases, the sum over c of d_sum[n] bias[e] is added to the gradient of the weight, for the token n and
// the expert e of the choice.
struct GatedExpertsBackward {
  static constexpr const char* kName = "gated experts backward";
  Tensor dy;         // [R, F], without the weights
  Tensor gate_up;    // [R, 2 F]
  Tensor d_gate_up;  // [R, 2 F]; may be gate_up itself
  Tensor rows;       // [R] int32: AssignExperts::rows
  Tensor weights;    // [N, k] fp32, overwritten by their gradients
  Gate gate = Gate::kSilu;
  Tensor d_sum = {}, bias = {}, choices = {};  // [N, C] [E, C] [N, k] int32; none: there are no biases
  Fp8Output fp8_d_gate_up = {};

  void check_on(Device device) const;
};

// The adapters of frozen layers of experts, like LoraForward: each expert has an A and a B. Without offsets
// there is one layer for all rows, such as a router, whose y is fp32 whatever the dtype of the others is.
//   u = scale x a[e]^T,  y += u b[e]^T
struct ExpertsLoraForward {
  static constexpr const char* kName = "experts LoRA forward";
  Tensor x, a, b;  // [R, C], with x_rows [N, C]; [E, r, C] [E, O, r], without offsets [r, C] [O, r]
  float scale;
  Tensor u, y;          // [R, r], kept for the backward; [R, O], added to: of x's dtype, or fp32
  Tensor offsets = {};  // [E + 1] int32
  Tensor x_rows = {};   // [R] int32: AssignExperts::rows; only with offsets

  void check_on(Device device) const;
};
// db[e] += sum over its rows of w dy u^T,  then u = scale dy b[e],  da[e] += sum over its rows of w u x^T.
// The weights w and the rows of dy are as in ExpertsBackward. This operation reads x, which the gradient of x
// may overwrite later: ExpertsLoraInput adds the adapter's part of that gradient.
struct ExpertsLoraBackward {
  static constexpr const char* kName = "experts LoRA backward";
  Tensor dy, x, b;  // [R, O], with dy_rows [N, O]; [R, C], with x_rows [N, C]; as in the forward
  float scale;
  Tensor u;       // [R, r], overwritten
  Tensor da, db;  // like a and b, added to
  Tensor offsets = {};
  Tensor x_rows = {}, dy_rows = {};  // [R] int32: not both
  Tensor weights = {};               // [N, k] fp32: only and always with dy_rows
  bool accumulate = true;

  void check_on(Device device) const;
};
// dx += u a[e]
struct ExpertsLoraInput {
  static constexpr const char* kName = "experts LoRA input";
  Tensor u, a;  // [R, r], of the backward; as in the forward
  Tensor dx;    // [R, C], added to
  Tensor offsets = {};

  void check_on(Device device) const;
};

// y[n] = add[n] + sum over j = 0, 1, .. of weights[n, j] x[places[n, j]], in fp32
struct SumExperts {
  static constexpr const char* kName = "sum experts";
  Tensor x;             // [R, C]
  Tensor places;        // [N, k] int32
  Tensor weights = {};  // [N, k] fp32; none: 1
  Tensor add = {};      // [N, C]; may be y itself
  Tensor y;             // [N, C]

  void check_on(Device device) const;
};

// Adds the result of a shared expert, which every token goes through (Qwen1.5-MoE): y[n] = add[n] +
// sigmoid(logits[n]) x[n]
struct AddShared {
  static constexpr const char* kName = "add shared expert";
  Tensor x;       // [N, C]
  Tensor logits;  // [N, 1] fp32
  Tensor add;     // [N, C]; may be y itself
  Tensor y;       // [N, C]

  void check_on(Device device) const;
};
// With s = sigmoid(logit): dx = s dy,  d_logit = s (1 - s) sum over c of dy x
struct AddSharedBackward {
  static constexpr const char* kName = "add shared expert backward";
  Tensor dy, x;     // [N, C]
  Tensor d_logits;  // [N, 1] fp32: the logits, overwritten by their gradients
  Tensor dx;        // [N, C]; may be x itself

  void check_on(Device device) const;
};

}  // namespace tessera
