// The operations of a transformer: a struct of arguments each, and the one list of them, AnyOp, at the end.
//
// A new operation is a struct here with its check in ops.cpp, a name in AnyOp, an implementation on each
// device (kernels/cpu/cpu_backend.h, kernels/cuda/cuda_backend.h) and a test. Nothing else lists operations.
//
// Shape letters: B batch, T tokens of a sequence, C channels, H heads, D head dim, F width of the MLP, V
// vocabulary, N = B T rows, O output features.
//
// Documents: several may share a sequence. documents[b, t] = {begin, end} of the document of token t, counted
// in tokens of the sequence; the end is the token after its last. Attention stays within a document, and
// positions count from its beginning. Without the tensor a sequence is one document.
//
// Caches: when a text is continued, the keys and values of its tokens are kept, so that a step computes only
// those of the new tokens. starts[b] is the number of tokens of sequence b in the cache, which is the place
// of its first new token. If it is below 0 the sequence is idle: its activations are written as zeros, and
// nothing else of it is written.
//
// Rules for every operation:
//   - It allocates nothing. Scratch comes from the workspace of its launch (backend.h); attention has its
//     own.
//   - Gradients of parameters are added to what is there; with accumulate = false, as in the first
//     micro-batch of a step, they overwrite it. Gradients of activations always overwrite.
//   - Unless a field says otherwise, tensors share one dtype: fp32 on the CPU; bf16 or fp32 on CUDA.
//     Statistics and sums are fp32. Arithmetic inside an operation is fp32 whatever the dtype; a result is
//     rounded once.
//   - CUDA enqueues on the stream of the launch and returns; a Copy to or from host memory waits.
//   - Same arguments, same bits, unless AttentionPlan::deterministic is off.
// Error: a shape, dtype or device that does not fit, with the name of the field (check_on()).
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <type_traits>
#include <variant>
#include <vector>

#include "kernels/attention/choose.h"
#include "kernels/attention/decode.h"
#include "kernels/base/activation.h"
#include "kernels/base/four_bits.h"
#include "kernels/base/host_device.h"
#include "kernels/base/inspected.h"
#include "kernels/base/no_target.h"
#include "kernels/base/tensor.h"
#include "kernels/base/view.h"
#include "kernels/preference.h"
#include "kernels/sampling.h"
#include "kernels/step_verdict.h"

namespace tessera {

struct FillZero {
  static constexpr const char* kName = "fill zero";
  Tensor tensor;

  void check_on(Device device) const;
};

// Copies, between host and device and from fp32 to bf16 or back, as the devices and dtypes of the two tensors
// say.
struct Copy {
  static constexpr const char* kName = "copy";
  Tensor from, to;  // equal element counts

  void check_on(Device device) const;
};

// The masters of bf16 weights are kept as the weights and the lower 16 bits of the masters
// (kernels/base/master.h). As with Copy, the masters may be on the host of a GPU. On the CPU this operation
// works on bf16 as well.
struct SplitMasters {
  static constexpr const char* kName = "split masters";
  Tensor masters;  // fp32, n elements
  Tensor weights;  // [n] bf16, rounded from them
  Tensor low;      // [n] uint16; none: the lower bits are not kept, or another rank keeps them

  void check_on(Device device) const;
};
struct JoinMasters {
  static constexpr const char* kName = "join masters";
  Tensor weights, low;  // [n] bf16 and uint16
  Tensor masters;       // fp32, n elements

  void check_on(Device device) const;
};

// y[i] += x[i], rounded to the dtype of y
struct Accumulate {
  static constexpr const char* kName = "accumulate";
  Tensor x, y;  // [n] of one dtype, fp32 or bf16

  void check_on(Device device) const;
};

// y[i] = deviation x Philox(seed, stream).normal(first + i), rounded to fp32, with the bits of the CPU on
// every device. A bf16 y is rounded from that as a weight is rounded from its master; the CPU can do this as
// well. On CUDA the host waits for the operation.
struct RandomNormal {
  static constexpr const char* kName = "random normal";
  Tensor y;         // of any shape
  Tensor low = {};  // uint16, like y: the lower bits of the masters; only with a bf16 y
  double deviation;
  uint64_t seed, stream;
  int64_t first = 0;  // the index of y's first element, if y is a slice of a larger tensor

  void check_on(Device device) const;
};

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

// A matrix in FP8: its values are data times scale. On CUDA data is e4m3 or e5m2. The CPU computes in fp32:
// there data has the rounded values in fp32, already multiplied by the scale.
struct Fp8Matrix {
  Tensor data;   // like the matrix, or its transpose
  Tensor scale;  // [1] fp32, a power of two
  explicit operator bool() const { return static_cast<bool>(data); }
};
DType fp8_storage(DType format, Device device);  // the dtype of data

// An operation can write its result in FP8 as well, rounded as Quantise would round it, with the scale that
// `y` already has. A forward writes e4m3, a backward e5m2. On CUDA only for results in bf16.
struct Fp8Output {
  Fp8Matrix y;  // has the shape of the result
  Tensor amax;  // [1] fp32, becomes max(amax, |the result|), as in Quantise
  explicit operator bool() const { return static_cast<bool>(y); }
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
  Heads x, y;  // the heads of queries, then those of keys. y may be x itself, unless there are weights
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

// y = x / scale in FP8 (kernels/base/fp8.h), rounded to nearest even. What is beyond the format's largest
// number becomes that number, NaN stays NaN.
struct Quantise {
  static constexpr const char* kName = "quantise";
  Tensor x;                // [N, C]
  DType format;            // e4m3 or e5m2
  Fp8Matrix y;             // [N, C]; without data if only the transposed copy or the amax is wanted
  Tensor transposed = {};  // [C, N]: the same values transposed
  Tensor amax = {};        // [1] fp32, becomes max(amax, |x|); NaN counts as the largest
  bool current = false;    // first writes the scale: that of x itself, fp8_scale() without headroom

  void check_on(Device device) const;
};

// Counts the elements of x that Quantise cuts off, for an observer: count += the number of elements that,
// with this scale, are beyond the format's largest number. NaN is not counted.
struct CountSaturated {
  static constexpr const char* kName = "count saturated";
  Tensor x;      // [N, C]
  DType format;  // e4m3 or e5m2
  Tensor scale;  // [1] fp32
  Tensor count;  // [2] int32, the words of a uint64

  void check_on(Device device) const;
};

// y = x scale. A value of e4m3 has four significant bits, so a bf16 y is exact.
struct Dequantise {
  static constexpr const char* kName = "dequantise";
  Fp8Matrix x;  // [N, C] in e4m3
  Tensor y;     // [N, C]

  void check_on(Device device) const;
};

// Several layers that are stored as one matrix, such as q, k and v: the outputs of each of up to three; 0: no
// such layer
using LayerParts = std::array<int64_t, 3>;
inline int64_t count_of(const LayerParts& parts) {
  return std::ranges::count_if(parts, [](int64_t rows) { return rows > 0; });
}

// A matrix [N, C] with 4 bits a number (kernels/base/four_bits.h). C is a multiple of block_of(format).
struct FourBitMatrix {
  FourBits format;
  Tensor data;    // [N C / 4] uint16: bytes with two numbers each
  Tensor scales;  // [words_of_scales()] words of 32 bits; the dtype is fp32 in name only
  // If NF4 has scales in 8 bits (kernels/base/small_scales.h): the rows of each matrix of the files that this
  // one consists of. None: the scales are in fp32
  LayerParts small_scales = {};

  bool has_small_scales() const { return small_scales[0] > 0; }
};
// The number of NF4's scales of each of these matrices, which have `rows` rows of `columns` columns
LayerParts scales_of_each(const LayerParts& rows, int64_t columns);
int64_t words_of_scales(FourBits format, const Shape& matrix, const LayerParts& small_scales);

// y = x, rounded to 4 bits. If the scales are to be in 8 bits, RoundScales must follow.
struct RoundToFourBits {
  static constexpr const char* kName = "round to 4 bits";
  Tensor x;  // [N, C]
  FourBitMatrix y;

  void check_on(Device device) const;
};

// Rounds NF4's scales x to 8 bits: see SmallScalePlaces
struct RoundScales {
  static constexpr const char* kName = "round scales";
  Tensor x;           // [S] fp32
  LayerParts scales;  // the number of scales of each matrix; S in all
  Tensor y;           // [SmallScalePlaces::words()] words of 32 bits; the dtype is fp32 in name only

  void check_on(Device device) const;
};

// y = x widened to the dtype of y; in bf16 the product of value and scale is rounded.
struct WidenFourBits {
  static constexpr const char* kName = "widen 4 bits";
  FourBitMatrix x;
  Tensor y;  // [N, C]

  void check_on(Device device) const;
};

// y = x^T, for values in FP8
struct TransposeFp8 {
  static constexpr const char* kName = "transpose FP8";
  Tensor x, y;  // [N, C] [C, N] in e4m3

  void check_on(Device device) const;
};

// scale = fp8_scale(the largest amax of all ranks), with fp8_headroom(). If that amax is 0 or not finite, the
// scale does not change. With `current` there is no headroom, as in Quantise, and the scale becomes 1 if amax
// is 0 or not finite.
struct UpdateScales {
  static constexpr const char* kName = "update scales";
  Tensor amax;   // [R, F, S] fp32 of R ranks: of S matrices in e4m3 and, if F is 2, of S in e5m2
  Tensor scale;  // [F, S, kFp8ScaleStride] fp32: the first of each kFp8ScaleStride is written
  bool current = false;

  void check_on(Device device) const;
};

// y = x weight^T + bias + add. If there is a pre_activation, it gets that sum, and y =
// activation(pre_activation).
struct LinearForward {
  static constexpr const char* kName = "linear forward";
  Tensor x, weight, y;         // [N, C] [O, C] [N, O]
  Tensor bias = {};            // [O]
  Tensor add = {};             // [N, O], a residual; may be y itself, or pre_activation if there is one
  Tensor pre_activation = {};  // [N, O], saved for the backward
  Activation activation = Activation::kGelu;  // used if there is a pre_activation
  // x and weight in e4m3: both or none. If they are given, the GEMM multiplies these
  Fp8Matrix fp8_x = {}, fp8_weight = {};
  // The activation in FP8, after a GEMM in FP8. It must not share memory with fp8_x, which may still be read.
  Fp8Output fp8_y = {};

  void check_on(Device device) const;
};
struct LinearBackward {
  static constexpr const char* kName = "linear backward";
  enum class Part : uint8_t { kWeight, kInput };  // what is computed; dbias belongs to the weight

  Tensor dy, x, weight;        // [N, O] [N, C] [O, C]
  Tensor dx;                   // [N, C]; may be x itself: dweight and dbias are computed first
  Tensor dweight = {};         // [O, C], added to; none: the weight is frozen, and so is a bias
  Tensor dbias = {};           // [O], or shorter: of the first outputs only; added to
  Tensor dx_sum = {};          // [C], added to: the sum of dx's rows, the gradient of a bias added to x
  Tensor pre_activation = {};  // [N, C], if x = activation(pre_activation): dx is then the gradient of it
  Activation activation = Activation::kGelu;
  // [N, C]: another part of the gradient of x; may be dx itself. If there is a dweight as well, dx must not
  // be x
  Tensor add = {};
  // dy in e5m2, and weight^T [C, O] in e4m3: both or none. If they are given, dx is computed from these
  Fp8Matrix fp8_dy = {}, fp8_weight = {};
  // The gradient of an activation's input in FP8, after a GEMM in FP8; must not share memory with fp8_dy
  Fp8Output fp8_dx = {};
  // dy^T [O, N] in e5m2 and x^T [C, N] in e4m3: both or none. If they are given, dweight is computed from
  // these
  Fp8Matrix fp8_dy_transposed = {}, fp8_x_transposed = {};
  bool accumulate = true;

  void check_on(Device device) const;
};

// The adapter of a frozen linear layer, LoRA (Hu et al., arXiv:2106.09685): u = scale x A^T, y = add + u B^T.
// If P layers are stored as one matrix, each has its own A and B: the outputs of a layer depend only on its
// own r columns of u.
struct LoraForward {
  static constexpr const char* kName = "LoRA forward";
  Tensor x, a, b;    // [N, C] [P r, C] [O, r]
  LayerParts parts;  // the outputs of each layer; O in all
  float scale;
  Tensor u, y;      // [N, P r], kept for the backward; [N, O]
  Tensor add = {};  // [N, O]; may be y itself

  void check_on(Device device) const;
};
struct LoraBackward {
  static constexpr const char* kName = "LoRA backward";
  Tensor dy, x, a, b;  // [N, O] [N, C] [P r, C] [O, r]
  LayerParts parts;
  float scale;
  Tensor u;         // [N, P r], overwritten by its gradient
  Tensor dx;        // [N, C], the adapter's part of the gradient; may be x itself: da is computed first
  Tensor da, db;    // [P r, C] [O, r], added to
  Tensor add = {};  // [N, C]: dx = add + the adapter's part; may be dx itself, which must then not be x
  bool accumulate = true;

  void check_on(Device device) const;
};

// A linear layer of a decode step, with the norm before it and the activation and addition after it:
//   y = activation(norm(x) weight^T + bias) + add
// It computes what the operations of each_plain() compute one after another. With few rows a single pass is
// cheaper than several. norm(x) is rounded as there; the sums before the activation may stay unrounded.
struct FusedLinear {
  static constexpr const char* kName = "fused linear";
  enum class Epilogue : uint8_t { kNone, kGelu, kGeluExact, kRelu, kRelu2, kSwiglu };

  Tensor x, weight, y;      // [N, C] [O, C] [N, O]; with kSwiglu weight [2 O, C], gates first
  Tensor bias = {};         // [rows of weight]
  Tensor add = {};          // [N, O], may be y itself; without an activation
  Tensor norm_weight = {};  // [C]: x is normed, by RMSNorm
  Tensor norm_bias = {};    // [C], beside it: by LayerNorm
  float epsilon = 0;        // of the norm
  Epilogue activation = Epilogue::kNone;
  // Scratch for devices and sizes that take several passes: [N, C] [N] [N] if there is a norm, and [N, rows
  // of weight] if there is an activation
  Tensor normed = {}, mean = {}, rstd = {}, sums = {};

  void check_on(Device device) const;
  // Calls visit(op) with the operations that compute the same in several passes.
  template <class Visit>
  void each_plain(Visit&& visit) const;
};

// y = softmax(scale q k^T + mask) v. With H query heads and K heads of keys and values, query head h reads
// head h / (H / K). A plan may add a bias to the scores (AttentionScores). With sinks, the softmax of a row
// of head h has one more score, sinks[h], which belongs to no key and no value (kernels/attention/sinks.h).
struct AttentionForward {
  static constexpr const char* kName = "attention forward";
  const AttentionPlan& plan;
  // H heads of [B, T, heads, D], and K heads of [B, kv_tokens, heads, D]: often of one tensor, see view.h
  Heads q, k, v;
  Heads y;                 // H heads of [B, T, heads, D]
  Tensor saved;            // [plan.saved_shape], for the backward; it does not depend on dropout
  Tensor workspace = {};   // plan.forward_workspace_bytes
  Dropout dropout = {};    // of the probabilities; refused by a plan without it
  MaskTables tables = {};  // if the plan's mask has tables, and only then
  Tensor sinks = {};       // [H], if the plan has sinks, and only then

  void check_on(Device device) const;
};
struct AttentionBackward {
  static constexpr const char* kName = "attention backward";
  const AttentionPlan& plan;
  Heads q, k, v;  // as the forward took them
  Heads y;        // as the forward wrote it, and so is `saved`
  Tensor saved;
  Heads dy;                // like y
  Heads dq, dk, dv;        // like q, k, v; dk and dv are sums over the query heads that read the same head
  Tensor workspace = {};   // plan.backward_workspace_bytes
  Dropout dropout = {};    // the forward's
  MaskTables tables = {};  // the forward's
  Tensor sinks = {};       // the forward's
  Tensor dsinks = {};      // [H]; none: not wanted
  bool accumulate = true;  // whether dsinks is added to

  void check_on(Device device) const;
};

// The entropy of attention for some of its queries, for an observer. s are the scores, with their bias, of
// the keys that a query sees, and p = softmax(s). For each head it is the mean over the queries of the
// entropy -sum p log p, in nats. Sinks are not among the scores, and nothing is dropped. A query that sees no
// key does not count; if no query counts, the entropy is 0. LargestScores (score_ops.h) looks at all queries.
struct AttentionSample {
  static constexpr const char* kName = "attention sample";
  static constexpr int64_t kSequences = 8, kQueries = 64;  // at most: the first ones, and evenly spaced ones
  static int64_t sequences(const AttentionShape& shape) { return std::min(shape.batch, kSequences); }
  static int64_t queries(const AttentionShape& shape) { return std::min(shape.tokens, kQueries); }
  // The token of sampled query number i in a sequence of `tokens` tokens. The last sampled query is the last
  // token.
  TESSERA_HOST_DEVICE static constexpr int64_t query(int64_t i, int64_t tokens) {
    return tokens <= kQueries ? i : (i + 1) * tokens / kQueries - 1;
  }

  const AttentionPlan& plan;
  Heads q, k;              // as AttentionForward takes them
  MaskTables tables = {};  // likewise
  Tensor entropy;          // [H] fp32

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

// Moves rows of heads into another order, dtype or place: row n of `to` becomes row rows[n] of `from`, or 0
// if rows[n] is below 0. Rows are counted over all sequences. fp32 and bf16 are converted into each other.
struct MoveHeads {
  static constexpr const char* kName = "move heads";
  Heads from, to;    // an equal number of heads, of [B, T, heads, D], each tensor with its own B and T
  Tensor rows = {};  // int32, for each row of `to`; none: row n becomes row n, and both have as many rows

  void check_on(Device device) const;
};

// Writes the keys and values of T new tokens to the cache: token t of sequence b goes to row starts[b] + t.
// In a ring it goes to row (starts[b] + t) % capacity, in place of an older token.
struct CacheAppend {
  static constexpr const char* kName = "cache append";
  Heads k, v;               // K heads of [B, T, heads, D]
  Tensor starts;            // [B] int32; starts[b] + T is at most the capacity, unless it is a ring
  Tensor k_cache, v_cache;  // [B, capacity, K, D]
  bool ring = false;        // with T = 1
  // If queries choose blocks of `block` tokens: [B, K, capacity / block rounded up, D] fp32. The mean key of
  // each block that the new tokens complete is written there. None: queries do not choose
  Tensor means = {};
  int64_t block = 0;

  void check_on(Device device) const;
};

// Both operations in one: the rotated keys are the ones that are appended.
struct RotaryAppend {
  static constexpr const char* kName = "rotary and cache append";
  RotaryForward rotary;
  CacheAppend append;

  void check_on(Device device) const;
};

// Turns keys and values of whole groups of tokens into codes (kernels/attention/small_cache.h). If k and v
// have fewer rows than the text has tokens, they are rings: token t is in row t % rows. Without `starts`, the
// groups `first` to `first + count` - 1 of each sequence are turned into codes. With `starts`, the call comes
// before the token starts[b] is appended to a ring of kNewestTokens rows: if that token begins a group, the
// group whose rows it will overwrite becomes codes.
struct QuantiseCache {
  static constexpr const char* kName = "quantise cache";
  CacheFormat format;
  Tensor k, v;    // [L, B, rows, K, D], for L layers
  Tensor groups;  // [L, B, K, G, format.group_words()] int32
  int64_t first = 0, count = 0;
  Tensor starts = {};  // [B] int32

  void check_on(Device device) const;
};
// The reverse for one sequence: the numbers that the codes of its first `count` groups stand for
struct DequantiseCache {
  static constexpr const char* kName = "dequantise cache";
  CacheFormat format;
  Tensor groups;  // [K, G, format.group_words()] int32
  int64_t count;  // groups
  Tensor k, v;    // [rows, K, D]: token t to row t

  void check_on(Device device) const;
};

// Attention of one new token of each sequence, whose own keys and values are already in the cache. It sees
// the rows 0 to starts[b], in a ring at most all of its rows; with sparse blocks only the rows in blocks that
// the list of its own block has. An idle sequence has y = 0. With DecodeShape::one_cache the B tokens belong
// to one sequence, and the caches are [1, capacity, K, D].
struct DecodeAttention {
  static constexpr const char* kName = "decode attention";
  DecodePlan plan;
  Heads q;                  // H heads of [B, 1, heads, D]
  Tensor k_cache, v_cache;  // [B, capacity, K, D]; with a small cache rings [B, kNewestTokens, K, D]
  Tensor starts;            // [B] int32, each below the capacity, unless the cache is a ring
  Tensor y;                 // [B, 1, H, D]
  Tensor workspace = {};    // plan.workspace_bytes
  Tensor sinks = {};        // [H], if the plan has sinks, and only then
  Tensor blocks = {};       // as in MaskTables, if the plan has sparse blocks, and only then
  Tensor means = {};        // [B, K, DecodeShape::slots(), D] fp32, if queries choose blocks: see CacheAppend
  Tensor groups = {};       // [B, K, G, words] int32, for a small cache: see QuantiseCache

  void check_on(Device device) const;
};

// Attention of a decode step, from the heads of the new tokens on: q and k are normed, and rotated if
// positions are rotary; k and v go to the cache; and q reads the cache.
struct CachedAttention {
  Tensor heads;                         // [B, 1, H + 2 K, D]: q, k, v of the new tokens
  std::optional<RotaryForward> rotary;  // of q and k in `heads`
  CacheAppend append;
  DecodeAttention attention;

  void check_on(Device device) const;
  // Calls visit(op) with the operations that compute it: RotaryAppend or CacheAppend, and DecodeAttention.
  template <class Visit>
  void each_plain(Visit&& visit) const;
};

// An operation of a decode step. The operations whose results it reads are named by their numbers in the
// step, so that a device need not find out which operation wrote a tensor.
struct DecodeOp {
  static constexpr int kNone = -1;
  std::variant<EmbeddingForward, FusedLinear, LinearForward, CachedAttention> op;
  int x = kNone, add = kNone;  // the operations whose y is this one's x, and its add
  int buffer = 0;              // operations with the same number have the same y, which each overwrites

  // Calls visit(op) with the operations of AnyOp that compute it.
  template <class Visit>
  void each_plain(Visit&& visit) const;
};

// The operations of a decode step, one after another: an embedding, then linear layers and attention, at last
// a linear layer. A device that computes all of them in one kernel writes only the caches and the y of the
// last operation; the other tensors then keep their old contents.
struct FusedDecodeStep {
  static constexpr const char* kName = "decode step";
  std::span<const DecodeOp> operations;
  // decode_step_bytes() (backend.h) bytes, zeros before the first run; each run leaves there what the next
  // one needs. None: the operations run one by one
  Tensor memory = {};

  void check_on(Device device) const;
};

// Draws the next token of each sequence from the softmax of its logits, as `rule` says (kernels/sampling.h),
// and counts it in `seen`, `draws` and `starts`. A draw depends on the seed, the sequence's number and the
// number of its earlier draws, not on other sequences (kernels/token_draw.h has the arithmetic). An idle
// sequence draws kIdleToken. A sequence with a NaN among its logits draws kBadLogits and becomes idle.
// Neither of these is counted.
struct SampleTokens {
  static constexpr const char* kName = "sample tokens";
  Tensor logits;  // [B, padded V]
  int64_t vocab_size;
  SamplingRule rule;
  uint64_t seed;
  Tensor seen;    // [B, (V + 31) / 32] int32, added to. Bit t % 32 of word t / 32: token t occurs in the text
  Tensor draws;   // [B, 2] int32: the sequence's number, and its number of draws so far, which grows by one
  Tensor starts;  // [B] int32: grows by one, as the drawn token is the next to be read
  Tensor tokens;  // [B] int32, out

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

// losses[n] = -log softmax(logits[n])[targets[n]], over the first `vocab_size` columns; the other columns are
// padding. A row whose target is kNoTarget has loss 0 and gradient 0. With want_gradient, the same pass
// replaces logits by gradient_scale (softmax - onehot), and the padding by 0. The scale is in memory because
// it changes from step to step: a CUDA graph reads it when it runs. With weights w, the loss and the gradient
// of row n are multiplied by w[n]. With a cap c, the loss is that of capped = c tanh(logits / c), and the
// gradient of the logits is the gradient of capped times 1 - (capped / c)^2. With z_loss z, z lse^2 is added
// to a row's loss, where lse is the log of the sum of exp(logits): this keeps the sum near 1. With
// label_smoothing s, the loss is (1 - s) times that of the target plus s times the mean over all columns.
struct CrossEntropy {
  static constexpr const char* kName = "cross entropy";
  Tensor logits;   // [N, padded V], read; overwritten by the gradient with want_gradient
  Tensor targets;  // [N] int32, each < vocab_size, or kNoTarget
  Tensor losses;   // [N] fp32
  int64_t vocab_size;
  bool want_gradient;
  float cap = 0;               // 0: none
  Tensor gradient_scale = {};  // [1] fp32; none: 1
  Tensor weights = {};         // [N] fp32; none: 1
  Fp8Output fp8_dlogits = {};  // only with want_gradient
  float z_loss = 0;
  float label_smoothing = 0;  // 0 to 1, not 1

  void check_on(Device device) const;
};

// The loss of a row with a target is w (c CE + (1 - c) t^2 ((1 - r) F + r R)); a row without one has loss 0.
// CE is that of CrossEntropy. With p = softmax(teacher / t) and q = softmax(logits / t), F is the forward
// divergence, the sum of p log(p / q), and R the reverse one, the sum of q log(q / p). c is `cross_entropy`,
// t the temperature and r `reverse`. With want_gradient logits become w gradient_scale times c
// (softmax(logits) - onehot) + (1 - c) t ((1 - r) (q - p) + r q (log(q / p) - R)), and 0 in the padding.
// Hinton et al., arXiv 1503.02531; Gu et al., arXiv 2306.08543. If only the K largest logits of the teacher
// are known, p and q are probabilities of K + 1 events: these K tokens, and "any other token". Both
// divergences are then at most those over all tokens. The gradient of a token that is not known is q / q'
// times the gradient of that event, where q' is the event's probability by the student.
struct Distillation {
  static constexpr const char* kName = "distillation";
  Tensor logits;        // [N, padded V], read; overwritten by the gradient with want_gradient
  Tensor teacher = {};  // [N, any padded V] of the same dtype: the teacher's logits; none: see largest_ids
  Tensor targets;       // [N] int32, each < vocab_size, or kNoTarget
  Tensor losses;        // [N] fp32
  int64_t vocab_size;
  bool want_gradient;
  float temperature = 1, cross_entropy = 0, reverse = 0;
  Tensor gradient_scale = {};  // [1] fp32; none: 1
  Tensor weights = {};         // w, [N] fp32; none: 1
  // In place of `teacher`, for rows with a target: ids and values of LargestLogits, computed at the same
  // temperature. No id stands twice in a row.
  Tensor largest_ids = {}, largest = {};

  void check_on(Device device) const;
};

// The K largest of the first `vocab_size` logits of each row, in the order of their ids; of equal logits
// those with the lower ids. `values` has these logits as they are, and after them the logarithm of the sum of
// exp(logit / t) over all other columns, which is -infinity if there are none.
struct LargestLogits {
  static constexpr const char* kName = "largest logits";
  Tensor logits;  // [N, padded V], read
  Tensor ids;     // [N, K] int32, written
  Tensor values;  // [N, K + 1] fp32, written
  int64_t vocab_size;
  float temperature = 1;  // t

  void check_on(Device device) const;
};

// The losses of pairs of documents, by kernels/preference.h. A pair is a first document and the second one
// that begins where it ends, in the same sequence. For each row of a pair, `weights` gets the factor by which
// the gradient of the row's cross entropy becomes the gradient of the pair's loss; other rows get 0. At the
// first row of a pair, `figures` gets what PreferenceFigures::at() names; other rows get 0.
struct PreferenceLoss {
  static constexpr const char* kName = "preference loss";
  Tensor documents;       // [B, T, 2] int32: where each token's document begins and ends
  Tensor kinds;           // [B, T] int32: the DocumentKind of each token's document
  Tensor targets;         // [N] int32, or kNoTarget
  Tensor losses;          // [N] fp32: the cross entropy of each row; rows without a target are not read
  Tensor reference = {};  // [N] fp32: the same by the reference, if the rule needs one and `stored` is none
  // [N, 2] fp32: at the first row of each document, the sum of the reference's log-probabilities of its
  // tokens that count, as a float and the rest that the float leaves
  Tensor stored = {};
  PreferenceRule rule = {};
  // For kto, both [1] fp32: the sum of m - m' over all mismatched documents of the step, and one over their
  // number. If there are weights, each document counts with its weight. None: z is 0. That is enough to find
  // the sum, which is then in row PreferenceFigures::kDivergence of the figures
  Tensor divergence = {}, gradient_scale = {};
  // [N] fp32: at the first row of a pair, the factor of its loss and of the divergence of its figures; none:
  // 1
  Tensor pair_weights = {};
  Tensor weights;  // [N] fp32, written
  Tensor figures;  // [PreferenceFigures::kCount, N] fp32, written

  void check_on(Device device) const;
};

// logits = cap tanh(logits / cap)
struct CapLogits {
  static constexpr const char* kName = "logit cap";
  Tensor logits;  // [N, padded V]
  float cap;      // above 0

  void check_on(Device device) const;
};

// The logits and the loss in one, for training: neither the logits nor their gradient are stored. With
// l = x weight^T, r the logit l of the row's target, and S the sum of a row of e:
//   e = exp(min(l - r, 60)), 0 for the target and for columns from vocab_size on
//   losses = w log(1 + S),  a = w gradient_scale / (1 + S),  b = -a S,  scaled_x = a x
// So w gradient_scale (softmax - onehot) is a e, and b for the target. The gradients follow from
// LinearBackward with dy = e and x = scaled_x, and then HeadGradient. A row whose target is kNoTarget has
// loss 0 and a = b = 0.
struct HeadLoss {
  static constexpr const char* kName = "head and loss";
  static constexpr int64_t kSumColumns = 192;  // columns of a row that are added up in a first step
  Tensor x, weight;                            // [N, C] [padded V, C]
  Tensor targets;                              // [N] int32, each < vocab_size, or kNoTarget
  Tensor gradient_scale = {};                  // [1] fp32; none: 1
  Tensor weights = {};                         // w, [N] fp32; none: 1
  float z_loss = 0;                            // as CrossEntropy's: changes losses, a and b
  int64_t vocab_size;
  Tensor e;         // [N, padded V], written, and so are all tensors below
  Tensor losses;    // [N] fp32
  Tensor scaled_x;  // [N, C]
  Tensor factors;   // [2, N] fp32: a, b
  Tensor sums;      // [padded V / kSumColumns, rounded up, N] fp32: scratch

  void check_on(Device device) const;
};
// For every row dx = a product + b weight[target], where product = e weight; and dweight[target] += b x
struct HeadGradient {
  static constexpr const char* kName = "head gradient";
  Tensor x;                // [N, C], overwritten by its gradient dx
  Tensor product;          // [N, C]
  Tensor targets;          // [N] int32
  Tensor factors;          // [2, N] fp32: a, b
  Tensor weight, dweight;  // [padded V, C]

  void check_on(Device device) const;
};

// norm[0] = sqrt of the sum of squares of every element of every tensor
struct GlobalNorm {
  static constexpr const char* kName = "gradient norm";
  std::span<const Tensor> tensors;
  Tensor norm;  // [1] fp32

  void check_on(Device device) const;
};

// sum[0] = the sum of losses, added in double in a fixed order and rounded once
struct SumLosses {
  static constexpr const char* kName = "sum of losses";
  Tensor losses;  // fp32, of any shape
  Tensor sum;     // [1] fp32

  void check_on(Device device) const;
};

// Decides whether a step may update the weights, by the sum of its losses and the norm of its gradients.
struct JudgeStep {
  static constexpr const char* kName = "judge step";
  Tensor losses;     // [R] fp32: the sums of R ranks, which are added up
  Tensor grad_norm;  // as in AdamW
  Tensor limits;     // [2] fp32: the largest sum of losses, and the largest norm
  Tensor verdict;    // [1] fp32, written: a StepVerdict

  void check_on(Device device) const;
};

// Finds the range of a tensor's finite elements, how many are not finite, and where the first of these is:
// see Inspected (kernels/base/inspected.h). It is for searches: it takes two passes, and is not written for
// speed.
struct Inspect {
  static constexpr const char* kName = "inspect";
  Tensor x;         // real numbers, or FP8 without its scale
  int64_t row = 0;  // if not 0: rows have this many elements, and only `count` from `first` on are looked at
  int64_t first = 0, count = 0;
  Tensor result;  // [kInspectedWords] int32, the words of an Inspected

  void check_on(Device device) const;
};

// One AdamW step of some parameters (Loshchilov and Hutter, arXiv:1711.05101). The gradient is multiplied by
// min(1, max_norm / (norm + 1e-6)). If the norm is not finite, nothing changes, so a diverged step can be
// refused without harm.
//
// Moments in bf16 are widened to fp32, the step is computed as with fp32 moments, and then they are rounded
// at random (kernels/base/bf16.h). Rounded to nearest, a decay of less than half a unit in the last place
// would never move them. With i = first_element + the element's index, word i % 4 of Philox(random_key,
// step).bits(i / 4) rounds both moments: its lower half m, its upper half v. So a tensor may be cut into
// slices, each with its own first_element, and gets the bits that the whole tensor would get.
struct AdamW {
  static constexpr const char* kName = "adamw";
  // Parameters that lie side by side. All parts have the same dtypes.
  struct Part {
    Tensor param;               // bf16 or fp32; on the CPU always fp32
    Tensor low;                 // uint16: with param it is the master that the step updates (SplitMasters);
                                // none if param is fp32
    Tensor grad;                // like param, or fp32
    Tensor m, v;                // both fp32 or both bf16, on either device
    int64_t decayed = 0;        // the elements before this one have weight decay: a multiple of 8, or all
    uint64_t random_key = 0;    // used with bf16 moments only
    int64_t first_element = 0;  // the index of a slice's first element in the whole: a multiple of 8
  };
  std::vector<Part> parts;
  Tensor grad_norm;  // [R] fp32: the norms of R parts of the gradients, by GlobalNorm. The norm of all
                     // gradients is the root of the sum of their squares
  double max_norm;   // 0 or less: no clipping
  // double, because 1 - beta2 in fp32 would be off by 1e-5
  double learning_rate, beta1, beta2, epsilon, weight_decay;
  int64_t step;         // from 1
  Tensor verdict = {};  // [1] fp32, of JudgeStep: nothing changes unless it is kUpdate; none: only the norm
                        // decides

  void check_on(Device device) const;
};

// Measures what an AdamW step is about to do to some ranges of its parameters. sums[s] has three sums over
// range s: of the squares of the weights (masters), of the gradient as the step scales it, and of what the
// step adds to the weights. It writes nothing else, and runs before the step. The sums are 0 if the step
// changes nothing.
struct AdamWNorms {
  static constexpr const char* kName = "adamw norms";
  struct Range {
    size_t part = 0;               // the index of a part of the step
    int64_t first = 0, count = 0;  // elements of that part; first: a multiple of 8
  };
  const AdamW& step;
  std::span<const Range> ranges;
  Tensor sums;  // [S, 3] fp32

  void check_on(Device device) const;
};

// Muon updates a matrix by the direction of the mean of its gradients, whatever its length (Jordan et al.,
// 2024, https://kellerjordan.github.io/posts/muon). It consists of three operations, so that ranks can
// exchange their parts of the direction between them.
//
// The first is for any elements that lie side by side: m = momentum m + (1 - momentum) g, and the direction,
// after Nesterov, (1 - momentum) g + momentum m, where g is the gradient after clipping. It changes nothing
// where AdamW does not.
struct MuonMomentum {
  static constexpr const char* kName = "muon momentum";
  Tensor gradient;   // [n] as AdamW's
  Tensor mean;       // [n] m: fp32, or bf16 that is rounded at random as in AdamW
  Tensor direction;  // [n], written, in the dtype of the weights
  Tensor grad_norm;  // this and all that follow as in AdamW
  double max_norm, momentum;
  int64_t step;
  uint64_t random_key = 0;
  int64_t first_element = 0;  // a multiple of 8
  Tensor verdict = {};

  void check_on(Device device) const;
};

// The second: X becomes approximately the nearest matrix with orthonormal rows or columns, times rms sqrt(the
// larger side). For an exactly orthonormal matrix that gives the root mean square `rms`. X / (margin |X|),
// with the Frobenius norm, goes through the polynomials a X + (b A + c A A) X with A = X X^T, one after the
// other, which move its singular values towards 1. For a tall matrix the same is done with X^T. A matrix of
// zeros stays zero. The rounded result of each GEMM has the dtype of the matrix, and sums are fp32. Several
// matrices are computed together, so that small ones fill a device; each gets the bits that it would get
// alone.
struct Orthogonalise {
  static constexpr const char* kName = "orthogonalise";
  struct Polynomial {
    double a, b, c;
  };
  static constexpr size_t kMost = 24;
  std::span<const Tensor> matrices;         // [m, n] each, 1 to kMost
  Tensor room;                              // scratch of their dtype: room_for() elements for each matrix
  std::span<const Polynomial> polynomials;  // an odd number of them
  double margin = 1;                        // at least 1
  double rms = 1;

  // The elements of a matrix's scratch. It holds three matrices, which begin at multiples of 128 elements.
  static constexpr int64_t piece(int64_t elements) { return (elements + 127) / 128 * 128; }
  static constexpr int64_t room_for(int64_t rows, int64_t columns) {
    const int64_t least = std::min(rows, columns);
    return piece(rows * columns) + 2 * piece(least * least);
  }
  static int64_t room_for(const Tensor& matrix) { return room_for(matrix.shape[0], matrix.shape[1]); }
  void check_on(Device device) const;
};

// An optional operation between these two: it makes the rows of X equally long, by the mean over steps of the
// squares of their elements: r = beta r + (1 - beta) mean of squares, x = x / (sqrt(r) + epsilon). Then all
// of X is scaled to the root mean square `rms` (NorMuon: Li et al., arXiv:2510.05491). It changes nothing
// where AdamW does not.
struct NormaliseRows {
  static constexpr const char* kName = "normalise rows";
  static constexpr double kEpsilon = 1e-10;
  Tensor matrix;   // [m, n]
  Tensor squares;  // [m] fp32: r
  double beta, rms;
  Tensor grad_norm;  // as AdamW's
  Tensor verdict = {};

  void check_on(Device device) const;
};

// The third is for any elements that lie side by side: w -= learning_rate (direction + weight_decay w), with
// masters as in AdamW. It changes nothing where AdamW does not.
struct MuonUpdate {
  static constexpr const char* kName = "muon update";
  Tensor param, low;  // [n] as in AdamW
  Tensor direction;   // [n] like param
  Tensor grad_norm;   // as in AdamW
  double learning_rate, weight_decay;
  bool cautious = false;  // weight decay applies only where the direction also makes the weight smaller
  Tensor verdict = {};

  void check_on(Device device) const;
};

// As AdamWNorms, for a step of Muon and one range of it
struct MuonNorms {
  static constexpr const char* kName = "muon norms";
  const MuonUpdate& step;
  Tensor gradient;  // [n] as in MuonMomentum
  double max_norm;
  int64_t first, count;  // the range, in elements of the step
  Tensor sums;           // [3] fp32

  void check_on(Device device) const;
};

// The operations of a mixture of experts: expert_ops.h
struct RouterForward;
struct RouterBackward;
struct ChooseExperts;
struct ChooseExpertsBackward;
struct AssignExperts;
struct ExpertsForward;
struct ExpertsBackward;
struct GatedExpertsBackward;
struct ExpertsLoraForward;
struct ExpertsLoraBackward;
struct ExpertsLoraInput;
struct RouterSample;
struct SumExperts;
struct AddShared;
struct AddSharedBackward;

// The operations on the largest score of each head: score_ops.h
struct LargestScores;
struct ClipHeads;

using AnyOp = std::variant<
    const FillZero*, const Copy*, const SplitMasters*, const JoinMasters*, const Accumulate*,
    const RandomNormal*, const EmbeddingForward*, const EmbeddingBackward*, const LayerNormForward*,
    const LayerNormBackward*, const RmsNormForward*, const RmsNormBackward*, const HeadsNormForward*,
    const HeadsNormBackward*, const RotaryForward*, const RotaryBackward*, const GatedForward*,
    const GatedBackward*, const RouterForward*, const RouterBackward*, const ChooseExperts*,
    const ChooseExpertsBackward*, const AssignExperts*, const RouterSample*, const ExpertsForward*,
    const ExpertsBackward*, const GatedExpertsBackward*, const ExpertsLoraForward*,
    const ExpertsLoraBackward*, const ExpertsLoraInput*, const SumExperts*, const AddShared*,
    const AddSharedBackward*, const Quantise*, const CountSaturated*, const Dequantise*,
    const RoundToFourBits*, const RoundScales*, const WidenFourBits*, const TransposeFp8*,
    const UpdateScales*, const LinearForward*, const LinearBackward*, const FusedLinear*, const LoraForward*,
    const LoraBackward*, const AttentionForward*, const AttentionBackward*, const AttentionSample*,
    const LargestScores*, const DeadUnits*, const MoveHeads*, const CacheAppend*, const RotaryAppend*,
    const DecodeAttention*, const QuantiseCache*, const DequantiseCache*, const FusedDecodeStep*,
    const SampleTokens*, const ApplyDropout*, const CapLogits*, const CrossEntropy*, const Distillation*,
    const LargestLogits*, const PreferenceLoss*, const HeadLoss*, const HeadGradient*, const GlobalNorm*,
    const SumLosses*, const JudgeStep*, const Inspect*, const AdamW*, const AdamWNorms*, const MuonMomentum*,
    const Orthogonalise*, const NormaliseRows*, const MuonUpdate*, const MuonNorms*, const ClipHeads*>;

const char* name_of(const AnyOp& op);

template <class Visit>
void FusedLinear::each_plain(Visit&& visit) const {
  if (norm_bias) {
    visit(LayerNormForward{.x = x,
                           .weight = norm_weight,
                           .bias = norm_bias,
                           .y = normed,
                           .mean = mean,
                           .rstd = rstd,
                           .epsilon = epsilon});
  } else if (norm_weight) {
    visit(RmsNormForward{.x = x, .weight = norm_weight, .y = normed, .rstd = rstd, .epsilon = epsilon});
  }
  LinearForward linear{.x = norm_weight ? normed : x, .weight = weight, .y = y, .bias = bias, .add = add};
  switch (activation) {
    case Epilogue::kNone:
      return visit(linear);
    case Epilogue::kSwiglu:
      linear.y = sums;
      visit(linear);
      return visit(GatedForward{.gate_up = sums, .y = y});
    case Epilogue::kGelu:
      linear.activation = Activation::kGelu;
      break;
    case Epilogue::kGeluExact:
      linear.activation = Activation::kGeluExact;
      break;
    case Epilogue::kRelu:
      linear.activation = Activation::kRelu;
      break;
    case Epilogue::kRelu2:
      linear.activation = Activation::kRelu2;
      break;
  }
  linear.pre_activation = sums;
  visit(linear);
}

template <class Visit>
void CachedAttention::each_plain(Visit&& visit) const {
  if (rotary)
    visit(RotaryAppend{*rotary, append});
  else
    visit(append);
  visit(attention);
}

template <class Visit>
void DecodeOp::each_plain(Visit&& visit) const {
  if (const auto* cached = std::get_if<CachedAttention>(&op)) return cached->each_plain(visit);
  std::visit(
      [&](const auto& one) {
        if constexpr (!std::is_same_v<std::decay_t<decltype(one)>, CachedAttention>) visit(one);
      },
      op);
}

}  // namespace tessera
