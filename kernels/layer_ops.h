// Embeddings, norms, rotary positions, gates and dropout. The rules for all operations are in ops.h.
#pragma once

#include "kernels/base/activation.h"
#include "kernels/base/dropout.h"
#include "kernels/base/tensor.h"
#include "kernels/base/view.h"
#include "kernels/fp8_matrix.h"

namespace tessera {

// y[b, t] = scale token_table[tokens[b, t]] + position_table[p]; without a position table only the first
// term. p is t, or what `positions` or `starts` says. An idle sequence has y = 0: its tokens are not read,
// since they may not be ids.
struct EmbeddingForward {
  static constexpr const char* kName = "embedding forward";
  Tensor tokens;               // [B, T] int32, each < V
  Tensor token_table;          // [V, C]
  Tensor position_table = {};  // [>= T, C]
  Tensor y;                    // [B, T, C]
  float scale = 1;             // of a row of the token table
  Tensor positions = {};       // [B, T] int32
  Tensor starts = {};          // [B] int32: p = starts[b] + t; not together with positions

  void check_on(Device device) const;
};
struct EmbeddingBackward {
  static constexpr const char* kName = "embedding backward";
  Tensor tokens;                 // [B, T] int32
  Tensor dy;                     // [B, T, C]
  Tensor d_token_table;          // [V, C], added to
  Tensor d_position_table = {};  // [>= T, C], added to
  float scale = 1;               // the forward's
  Tensor positions = {};         // likewise

  void check_on(Device device) const;
};

// y = (x - mean) rstd weight + bias over the channels of each row; rstd = 1 / sqrt(variance + epsilon)
struct LayerNormForward {
  static constexpr const char* kName = "layernorm forward";
  Tensor x, weight, bias, y;  // [N, C] [C] [C] [N, C]
  Tensor mean, rstd;          // [N] fp32, saved for the backward
  float epsilon = 1e-5f;
  Fp8Output fp8_y = {};

  void check_on(Device device) const;
};
struct LayerNormBackward {
  static constexpr const char* kName = "layernorm backward";
  Tensor dy, x, weight, mean, rstd;
  Tensor dx;              // [N, C]
  Tensor dweight, dbias;  // [C], added to
  Tensor add = {};        // [N, C]: dx = add + ..., the residual's own gradient; may be dx itself
  Tensor dx_sum = {};     // [C], added to: the sum of dx's rows, the gradient of a bias that was added to x
  bool accumulate = true;
  Fp8Output fp8_dx = {};

  void check_on(Device device) const;
};

// y = x rstd (offset + weight) over the channels of each row; rstd = 1 / sqrt(mean(x^2) + epsilon).
// Zhang and Sennrich, arXiv:1910.07467.
struct RmsNormForward {
  static constexpr const char* kName = "rmsnorm forward";
  Tensor x, weight, y;  // [N, C] [C] [N, C]
  Tensor rstd;          // [N] fp32, saved for the backward
  float epsilon;
  float offset = 0;  // a normed channel is multiplied by offset + weight
  Tensor add = {};   // [N, C]: y = add + ...; not together with fp8_y
  Fp8Output fp8_y = {};

  void check_on(Device device) const;
};
struct RmsNormBackward {
  static constexpr const char* kName = "rmsnorm backward";
  Tensor dy, x, weight, rstd;
  float offset = 0;    // the forward's
  Tensor dx;           // [N, C]
  Tensor dweight;      // [C], added to
  Tensor add = {};     // [N, C]: dx = add + ..., the residual's own gradient; may be dx itself
  Tensor dx_sum = {};  // [C], added to: the sum of dx's rows, the gradient of a bias that was added to x
  bool accumulate = true;
  Fp8Output fp8_dx = {};

  void check_on(Device device) const;
};

// RMSNorm of some heads of each token, with all their channels as one row: y = x rstd (offset + weight),
// where rstd is that of RmsNormForward over the C = count D channels. OLMo 2 norms queries and keys in this
// way (Walsh et al., arXiv:2501.00656).
struct HeadsNormForward {
  static constexpr const char* kName = "rmsnorm of heads forward";
  Heads x, y;     // heads of equal count; y is not x, which the backward reads
  Tensor weight;  // [C]
  Tensor rstd;    // [N] fp32, saved for the backward
  float epsilon;  // above 0
  float offset = 0;

  void check_on(Device device) const;
};
struct HeadsNormBackward {
  static constexpr const char* kName = "rmsnorm of heads backward";
  Heads dy, x;
  Tensor weight, rstd;
  float offset = 0;  // the forward's
  Heads dx;          // may be dy itself
  Tensor dweight;    // [C], added to
  bool accumulate = true;

  void check_on(Device device) const;
};

// The rotary embedding of Su et al., arXiv:2104.09864, of the heads of queries and keys. The first R channels
// of a head are rotated, whose pairs are their halves: with (cos, sin) = angles[p, i] of the token's place p
// in its sequence or document, and i < R/2,
//   y[i] = x[i] cos - x[i + R/2] sin,  y[i + R/2] = x[i + R/2] cos + x[i] sin.
// The other channels stay as they are. R, an even number up to D, is that of the angles.
// With weights (QK norm), every head is first divided by its root mean square over D and multiplied by the
// weight: x becomes x rstd (offset + weight), rstd = 1 / sqrt(mean(x^2) + epsilon).
struct RotaryForward {
  static constexpr const char* kName = "rotary forward";
  Heads x, y;                           // queries' heads, then keys' heads. Without weights y may be x itself
  int64_t query_heads;                  // how many of them are queries
  Tensor angles;                        // [>= T, R / 2, 2] fp32: cos, sin
  Tensor q_weight = {}, k_weight = {};  // [D], of the heads of queries and of keys: both or none
  float epsilon = 0;                    // with weights: above 0
  float offset = 0;                     // of the weights
  Tensor rstd = {};                     // with weights: [N, heads of x] fp32, saved for the backward
  Tensor positions = {};                // [B, T] int32: p; none: t
  Tensor starts = {};                   // [B] int32: p = starts[b] + t; not together with positions

  void check_on(Device device) const;
};
struct RotaryBackward {
  static constexpr const char* kName = "rotary backward";
  Heads dy, dx;  // dx may be dy itself
  int64_t query_heads;
  Tensor angles;
  // With weights: x, q_weight, k_weight, rstd and offset as the forward took or wrote them. dx must not be x.
  Heads x = {};
  Tensor q_weight = {}, k_weight = {}, rstd = {};
  float offset = 0;
  Tensor dq_weight = {}, dk_weight = {};  // [D], added to
  Tensor positions = {};                  // the forward's
  bool accumulate = true;

  void check_on(Device device) const;
};

// y = a(gate) up, where a is silu or GELU: Shazeer, arXiv:2002.05202. A row of gate_up is F elements of gate,
// then F of up.
struct GatedForward {
  static constexpr const char* kName = "gated forward";
  Tensor gate_up;  // [N, 2 F]
  Tensor y;        // [N, F]
  Gate gate = Gate::kSilu;
  Fp8Output fp8_y = {};

  void check_on(Device device) const;
};
struct GatedBackward {
  static constexpr const char* kName = "gated backward";
  Tensor dy;         // [N, F]
  Tensor gate_up;    // [N, 2 F]
  Tensor d_gate_up;  // [N, 2 F]; may be gate_up itself
  Gate gate = Gate::kSilu;
  Fp8Output fp8_d_gate_up = {};

  void check_on(Device device) const;
};

// Finds units of an MLP that do nothing, for an observer: maxima[f] = max(maxima[f], |x[n, f]|), and dead[0]
// = the number of maxima that are at most kThreshold. The rows of x may come in chunks, since maxima are
// kept.
struct DeadUnits {
  static constexpr const char* kName = "dead units";
  static constexpr float kThreshold = 1e-5f;
  Tensor x;       // [N, F], the activated hidden layer
  Tensor maxima;  // [F] fp32; zeros before the first rows
  Tensor dead;    // [1] fp32

  void check_on(Device device) const;
};

// y = x with some elements set to 0 at random and the others multiplied by dropout.scale(); with `add`, y is
// add plus that. The backward is the same operation on the gradient.
struct ApplyDropout {
  static constexpr const char* kName = "dropout";
  Tensor x;         // [B, T, C]: b is sequence dropout.first_sequence + b, t the row, C the columns
  Tensor y;         // [B, T, C]; may be x itself
  Tensor add = {};  // [B, T, C]; may be y itself
  Dropout dropout;
  Tensor rows = {};  // [B, T] int32: the number of each row for the mask; none: t

  void check_on(Device device) const;
};

}  // namespace tessera
