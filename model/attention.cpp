#include "model/attention.h"

namespace tessera {
namespace {

// The heads of q and k in qkv, in what was rotated, or in their gradients: q before k in all of them
Heads heads_to_rotate(const ModelConfig& config, const Tensor& tensor) {
  return {tensor, 0, config.heads + config.kv_heads};
}

// q, k and v of the batch's tokens
PackedHeads heads_of(const AttentionSettings& a, const AttentionSaved& s) {
  PackedHeads heads(s.qkv, a.plan.shape);
  if (s.rotated) heads.q.tensor = heads.k.tensor = s.rotated;
  return heads;
}

// All heads of the first `tokens` tokens of a cache with one slot
Heads cached_heads(const Tensor& cache, int64_t tokens) {
  const int64_t capacity = cache.shape[1], K = cache.shape[2], D = cache.shape[3];
  return {cache.view({capacity, K, D}).rows(0, tokens).view({1, tokens, K, D}), 0, K};
}

// The part of the gradient of the qkv bias that is left to be summed over the rows of the gradient of qkv.
//
// Attention itself knows the rest, as long as nothing stands between its sums and the bias. A bias of the
// keys adds the same to all scores of a query, which the softmax does not see: its gradient is 0. The
// probabilities of a query add up to 1, so that a bias of the values arrives at the output whole: its
// gradient is the sum of the output's, and that is the gradient of W_O's bias times W_O.
Tensor qkv_bias_to_sum(const Stream& stream, const AttentionSettings& a, const AttentionWeights& w,
                       const AttentionWeights& gradients) {
  const Tensor &qkv = gradients.qkv.bias, &out = gradients.out.bias;
  const int64_t width = a.config.attention_width();
  if (!qkv || !out || a.angles || a.dropout || a.config.kv_heads != a.config.heads) return qkv;
  const Tensor of_values = qkv.rows(2 * width, width).view({1, width});
  stream.run(LinearBackward{
      .dy = out.view({1, out.shape[0]}), .x = of_values, .weight = w.out.weight, .dx = of_values});
  return qkv.rows(0, width);
}

Tensor rows_of(const Tensor& heads) {  // [B, T, H, D] as [N, H D]
  return heads.view({heads.shape[0] * heads.shape[1], heads.shape[2] * heads.shape[3]});
}

}  // namespace

void qkv_forward(const Stream& stream, const AttentionSettings& a, const AttentionWeights& w, const Tensor& x,
                 const AttentionSaved& s, const Fp8Matrix& fp8_x) {
  linear_forward(stream, a.config, w.qkv, qkv_layers(a.config), s.qkv_adapter,
                 {.x = x, .weight = w.qkv.weight, .y = rows_of(s.qkv), .bias = w.qkv.bias, .fp8_x = fp8_x});
  place_heads(stream, a, w, s);
}

void place_heads(const Stream& stream, const AttentionSettings& a, const AttentionWeights& w,
                 const AttentionSaved& s) {
  const RotaryForward rotary{.x = heads_to_rotate(a.config, s.qkv),
                             .y = heads_to_rotate(a.config, s.rotated ? s.rotated : s.qkv),
                             .query_heads = a.config.heads,
                             .angles = a.angles,
                             .q_weight = w.q_norm,
                             .k_weight = w.k_norm,
                             .epsilon = a.config.norm_epsilon,
                             .rstd = s.head_rstd,
                             .documents = a.documents,
                             .starts = a.starts};
  const PackedHeads heads = heads_of(a, s);
  const CacheAppend append{
      .k = heads.k, .v = heads.v, .starts = a.starts, .k_cache = a.cache.k, .v_cache = a.cache.v};
  if (a.angles && a.starts) return stream.run(RotaryAppend{rotary, append});
  if (a.angles) stream.run(rotary);
  if (a.starts) stream.run(append);
}

void attention_forward(const Stream& stream, const AttentionSettings& a, const AttentionSaved& s,
                       const Tensor& workspace) {
  PackedHeads in = heads_of(a, s);
  if (a.decode)
    return stream.run(DecodeAttention{.plan = *a.decode,
                                      .q = in.q,
                                      .k_cache = a.cache.k,
                                      .v_cache = a.cache.v,
                                      .starts = a.starts,
                                      .y = s.output,
                                      .workspace = workspace});
  if (a.starts) {
    in.k = cached_heads(a.cache.k, a.plan.shape.kv_tokens);
    in.v = cached_heads(a.cache.v, a.plan.shape.kv_tokens);
  }
  stream.run(AttentionForward{.plan = a.plan,
                              .q = in.q,
                              .k = in.k,
                              .v = in.v,
                              .y = s.output,
                              .saved = s.row_state,
                              .workspace = workspace,
                              .dropout = a.dropout,
                              .documents = a.documents});
}

void out_forward(const Stream& stream, const ModelConfig& config, const AttentionWeights& w,
                 const AttentionSaved& s, const Tensor& add, const Tensor& y) {
  linear_forward(stream, config, w.out, {config.channels}, s.out_adapter,
                 {.x = rows_of(s.output), .weight = w.out.weight, .y = y, .bias = w.out.bias, .add = add});
}

void attention_backward(const Stream& stream, Arena& arena, const AttentionSettings& a,
                        const AttentionWeights& w, const AttentionSaved& s, const AttentionWeights& gradients,
                        const WriteGradients& write, const Tensor& dy, const Fp8Matrix& fp8_dy,
                        const Tensor& x) {
  const Tensor d_output =
      arena.alloc(MemoryTag::kActivations, "gradient of attention's output", dy.dtype, s.output.shape);
  const Tensor d_qkv = arena.alloc(MemoryTag::kActivations, "gradient of qkv", dy.dtype, s.qkv.shape);
  const Tensor workspace = arena.alloc(MemoryTag::kAttention, "attention backward scratch", DType::kF32,
                                       {(a.plan.backward_workspace_bytes + 3) / 4});
  linear_backward(stream, a.config, w.out, gradients.out, {a.config.channels}, s.out_adapter,
                  {.dy = dy,
                   .x = rows_of(s.output),
                   .weight = w.out.weight,
                   .dx = rows_of(d_output),
                   .dweight = gradients.out.weight,
                   .dbias = write.branch_bias ? gradients.out.bias : Tensor{},
                   .fp8_dy = fp8_dy,
                   .accumulate = write.accumulate});
  const PackedHeads in = heads_of(a, s), d(d_qkv, a.plan.shape);
  const Heads d_qk = heads_to_rotate(a.config, d_qkv);
  stream.run(AttentionBackward{.plan = a.plan,
                               .q = in.q,
                               .k = in.k,
                               .v = in.v,
                               .y = s.output,
                               .saved = s.row_state,
                               .dy = d_output,
                               .dq = d.q,
                               .dk = d.k,
                               .dv = d.v,
                               .workspace = workspace,
                               .dropout = a.dropout,
                               .documents = a.documents});
  if (a.angles)
    stream.run(RotaryBackward{.dy = d_qk,
                              .dx = d_qk,
                              .query_heads = a.config.heads,
                              .angles = a.angles,
                              .x = a.config.qk_norm ? heads_to_rotate(a.config, s.qkv) : Heads{},
                              .q_weight = w.q_norm,
                              .k_weight = w.k_norm,
                              .rstd = s.head_rstd,
                              .dq_weight = gradients.q_norm,
                              .dk_weight = gradients.k_norm,
                              .documents = a.documents,
                              .accumulate = write.accumulate});
  linear_backward(stream, a.config, w.qkv, gradients.qkv, qkv_layers(a.config), s.qkv_adapter,
                  {.dy = rows_of(d_qkv),
                   .x = x,
                   .weight = w.qkv.weight,
                   .dx = x,
                   .dweight = gradients.qkv.weight,
                   .dbias = qkv_bias_to_sum(stream, a, w, gradients),
                   .accumulate = write.accumulate});
}

}  // namespace tessera
