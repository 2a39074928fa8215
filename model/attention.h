// Self-attention: one product for q, k and v, their rotation, attention in the way that the plan says, and
// the projection W_O, which adds to the residual stream. Query heads share heads of k and v in groups
// (Ainslie et al., arXiv:2305.13245).
#pragma once

#include <optional>

#include "kernels/attention/decode.h"
#include "kernels/base/arena.h"
#include "model/kv_cache.h"
#include "model/lora.h"

namespace tessera {

struct AttentionWeights {
  LinearWeights qkv;      // [(H + 2K) D, C]: heads of q, of k, of v
  Tensor q_norm, k_norm;  // [D]; only with model.qk_norm
  LinearWeights out;      // [C, H D]   W_O
};

struct AttentionSaved {
  Tensor qkv_adapter, out_adapter;  // [N, P r]: see LoraForward; only with an adapter
  Tensor qkv;                       // [B, T, H + 2K, D]; without QK norm q and k are rotated in place
  Tensor rotated;                   // [B, T, H + K, D]: q and k after QK norm and rotation; only with QK norm
  Tensor head_rstd;                 // [N, H + K]; only with QK norm
  Tensor output;                    // [B, T, H, D]
  Tensor row_state;  // log-sum-exp or probabilities, see AttentionPlan; none where a token is decoded
};

inline LayerParts qkv_layers(const ModelConfig& config) {
  const int64_t D = config.head_dim, q = config.heads * D, k = config.kv_heads * D;
  return config.lora.split_qkv ? LayerParts{q, k, k} : LayerParts{q + 2 * k};
}

template <class W, class V>
void visit_attention_weights(W& attention, const ModelConfig& config, const V& visitor) {
  const int64_t C = config.channels, D = config.head_dim;
  visitor.linear("qkv", qkv_layers(config), C, Init::kNormal, config.has_qkv_bias(), attention.qkv);
  if (config.qk_norm) {
    const V norms = visitor.of(ParamPart::kNorms);
    norms.below("q_norm").vector("weight", D, Init::kOne, attention.q_norm);
    norms.below("k_norm").vector("weight", D, Init::kOne, attention.k_norm);
  }
  visitor.linear("out", {C}, config.attention_width(), Init::kNormalResidual, config.has_out_bias(),
                 attention.out);
}

template <class S, class Visit>
void visit_attention_saved(S& attention, const ModelConfig& config, const AttentionPlan& plan,
                           Visit&& visit) {
  const int64_t B = plan.shape.batch, T = plan.shape.tokens, H = config.heads, K = config.kv_heads,
                D = config.head_dim;
  const LoraConfig& lora = config.lora;
  const bool adapted = lora.adapts(Adapted::kAttention);
  if (adapted)
    visit(
        SavedInfo{
            Stage::kQkv, "adapter of qkv", plan.dtype, {B * T, count_of(qkv_layers(config)) * lora.rank}},
        attention.qkv_adapter);
  visit(SavedInfo{Stage::kQkv, "qkv", plan.dtype, {B, T, config.qkv_heads(), D}}, attention.qkv);
  if (config.qk_norm) {
    visit(SavedInfo{Stage::kQkv, "rotated q and k", plan.dtype, {B, T, H + K, D}}, attention.rotated);
    visit(SavedInfo{Stage::kQkv, "rstd of q and k", DType::kF32, {B * T, H + K}}, attention.head_rstd);
  }
  visit(SavedInfo{Stage::kAttention, "attention output", plan.dtype, {B, T, H, D}}, attention.output);
  if (plan.saved_shape.rank() > 0)  // else of decoding
    visit(SavedInfo{Stage::kAttention, plan.saved_name, plan.saved_dtype, plan.saved_shape,
                    MemoryTag::kAttention},
          attention.row_state);
  if (adapted)
    visit(SavedInfo{Stage::kOut, "adapter of W_O", plan.dtype, {B * T, lora.rank}}, attention.out_adapter);
}

// What attention is given besides its weights, the same for every block but for the plan's scale and dropout
struct AttentionSettings {
  const ModelConfig& config;
  AttentionPlan plan;
  Tensor angles;         // [>= T, D / 2, 2], see rope.h; only with rotary positions
  Dropout dropout = {};  // of the probabilities
  Tensor documents;      // of the batch
  // Of texts that are continued: keys and values go to the cache and are read there.
  KvCache::Layer cache = {};
  Tensor starts = {};                     // [B], see KvCache
  std::optional<DecodePlan> decode = {};  // set: each text has one new token, and this plan is the one used
};

// `fp8_x` is x in FP8 where that has been rounded, or none.
void qkv_forward(const Stream& stream, const AttentionSettings& a, const AttentionWeights& w, const Tensor& x,
                 const AttentionSaved& s, const Fp8Matrix& fp8_x);
// Of qkv_forward(), what follows its product: the rotation, and where texts are continued, the new keys and
// values to the cache
void place_heads(const Stream& stream, const AttentionSettings& a, const AttentionWeights& w,
                 const AttentionSaved& s);
void attention_forward(const Stream& stream, const AttentionSettings& a, const AttentionSaved& s,
                       const Tensor& workspace);
// y = add + W_O output; without `add`, that alone
void out_forward(const Stream& stream, const ModelConfig& config, const AttentionWeights& w,
                 const AttentionSaved& s, const Tensor& add, const Tensor& y);

// From `dy`, the gradient of out_forward's y, to that of x, which overwrites x. `fp8_dy` is dy in FP8 where
// that has been rounded, or none.
void attention_backward(const Stream& stream, Arena& arena, const AttentionSettings& a,
                        const AttentionWeights& w, const AttentionSaved& s, const AttentionWeights& gradients,
                        const WriteGradients& write, const Tensor& dy, const Fp8Matrix& fp8_dy,
                        const Tensor& x);

}  // namespace tessera
