#include "model/attention.h"

namespace tessera {
namespace {

struct QkvHeads {
  Heads q, k, v, qk;  // qk: q and k together
};

QkvHeads heads_of_qkv(const ModelConfig& config, const Tensor& qkv) {
  const int64_t H = config.heads, K = config.kv_heads;
  return {.q = {qkv, 0, H}, .k = {qkv, H, K}, .v = {qkv, H + K, K}, .qk = {qkv, 0, H + K}};
}

// As attention reads them
QkvHeads heads_of(const ModelConfig& config, const AttentionSaved& s) {
  QkvHeads heads = heads_of_qkv(config, s.qkv);
  const int64_t H = config.heads, K = config.kv_heads;
  if (s.rotated) heads.q = {s.rotated, 0, H}, heads.k = {s.rotated, H, K}, heads.qk = {s.rotated, 0, H + K};
  return heads;
}

Tensor rows_of(const Tensor& heads) {  // [B, T, H, D] as [N, H D]
  return heads.view({heads.shape[0] * heads.shape[1], heads.shape[2] * heads.shape[3]});
}

}  // namespace

void qkv_forward(const Stream& stream, const AttentionSettings& a, const AttentionWeights& w, const Tensor& x,
                 const AttentionSaved& s) {
  stream.run(LinearForward{.x = x, .weight = w.qkv.weight, .y = rows_of(s.qkv), .bias = w.qkv.bias});
  if (!a.angles) return;
  stream.run(RotaryForward{.x = heads_of_qkv(a.config, s.qkv).qk,
                           .y = heads_of(a.config, s).qk,
                           .query_heads = a.config.heads,
                           .angles = a.angles,
                           .q_weight = w.q_norm,
                           .k_weight = w.k_norm,
                           .epsilon = a.config.norm_epsilon,
                           .rstd = s.head_rstd});
}

void attention_forward(const Stream& stream, const AttentionSettings& a, const AttentionSaved& s,
                       const Tensor& workspace) {
  const QkvHeads in = heads_of(a.config, s);
  stream.run(AttentionForward{.plan = a.plan,
                              .q = in.q,
                              .k = in.k,
                              .v = in.v,
                              .y = s.output,
                              .saved = s.row_state,
                              .workspace = workspace});
}

void out_forward(const Stream& stream, const AttentionWeights& w, const AttentionSaved& s, const Tensor& add,
                 const Tensor& y) {
  stream.run(
      LinearForward{.x = rows_of(s.output), .weight = w.out.weight, .y = y, .bias = w.out.bias, .add = add});
}

void attention_backward(const Stream& stream, Arena& arena, const AttentionSettings& a,
                        const AttentionWeights& w, const AttentionSaved& s, const AttentionWeights& gradients,
                        const Tensor& dy, const Tensor& x) {
  const Tensor d_output =
      arena.alloc(MemoryTag::kActivations, "gradient of attention's output", dy.dtype, s.output.shape);
  const Tensor d_qkv = arena.alloc(MemoryTag::kActivations, "gradient of qkv", dy.dtype, s.qkv.shape);
  const Tensor workspace = arena.alloc(MemoryTag::kAttention, "attention backward scratch", DType::kF32,
                                       {(a.plan.backward_workspace_bytes + 3) / 4});
  stream.run(LinearBackward{.dy = dy,
                            .x = rows_of(s.output),
                            .weight = w.out.weight,
                            .dx = rows_of(d_output),
                            .dweight = gradients.out.weight,
                            .dbias = gradients.out.bias});
  const QkvHeads in = heads_of(a.config, s), d = heads_of_qkv(a.config, d_qkv);
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
                               .workspace = workspace});
  if (a.angles)
    stream.run(RotaryBackward{.dy = d.qk,
                              .dx = d.qk,
                              .query_heads = a.config.heads,
                              .angles = a.angles,
                              .x = a.config.qk_norm ? heads_of_qkv(a.config, s.qkv).qk : Heads{},
                              .q_weight = w.q_norm,
                              .k_weight = w.k_norm,
                              .rstd = s.head_rstd,
                              .dq_weight = gradients.q_norm,
                              .dk_weight = gradients.k_norm});
  stream.run(LinearBackward{.dy = rows_of(d_qkv),
                            .x = x,
                            .weight = w.qkv.weight,
                            .dx = x,
                            .dweight = gradients.qkv.weight,
                            .dbias = gradients.qkv.bias});
}

}  // namespace tessera
