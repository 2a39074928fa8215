// Self-attention: one GEMM for q, k and v, their rotation, attention as the plan says, and the projection
// W_O, whose result is added to the residual stream. Query heads share heads of k and v in groups (Ainslie et
// al., arXiv:2305.13245). This header has the weights and what happens between the two linear layers; the
// stages are in model/stages/attention.cpp.
#pragma once

#include <optional>

#include "kernels/attention/decode.h"
#include "kernels/stream.h"
#include "model/context.h"
#include "model/kv_cache.h"
#include "model/lora.h"
#include "model/norm.h"

namespace tessera {

struct AttentionWeights {
  LinearWeights qkv;      // [(H + 2K) D, C]: heads of q, of k, of v
  Tensor q_norm, k_norm;  // [D]; for all heads together [H D] and [K D]; only with model.qk_norm
  Tensor sinks;           // [H], in the unit of scores; only with model.attention_sinks
  LinearWeights out;      // [C, H D]   W_O
};

struct AttentionSaved {
  Tensor qkv_adapter, out_adapter;  // [N, P r]: see LoraForward; only with an adapter
  Tensor qkv;                       // [B, T, H + 2K, D]; without QK norm q and k are rotated in place
  Tensor rotated;                   // [B, T, H + K, D]: q and k after QK norm and rotation; only with QK norm
  Tensor head_rstd;                 // [N, H + K], with a norm of all heads together [2, N]; only with QK norm
  Tensor output;                    // [B, T, H, D]
  // [parts, ...]: log-sum-exp or probabilities, see AttentionPlan; none if a token is decoded
  Tensor row_state;
};

// Whether the backward computes a part of the gradient of QKV's bias from W_O, if both are trained: see
// qkv_bias_to_sum().
inline bool bias_gradient_reads_out(const ModelConfig& config) {
  return config.has_qkv_bias() && config.has_out_bias() && config.positions != Positions::kRope &&
         !config.attention_sinks && config.attention_cap == 0 && config.dropout.attention == 0 &&
         config.kv_heads == config.heads;
}

// The number of parts of the heads, if the plan has fewer heads than the model: attention computes one part
// after the other.
inline int64_t parts_of(const ModelConfig& config, const AttentionPlan& plan) {
  return config.heads / plan.shape.heads;
}

// Attention of one block over one batch
struct Attention {
  const ModelConfig& config;
  const AttentionWeights& weights;
  const AttentionSaved& saved;
  AttentionPlan plan;                     // with the scale of this block
  std::optional<DecodePlan> decode = {};  // if set, each text has one new token, and this plan is used
  Tensor workspace = {};                  // for the forward
  Tensor angles = {};                     // [>= T, R / 2, 2], see rope.h; only with rotary positions
  Dropout dropout = {};                   // of the probabilities
  Tensor positions = {};                  // as in Batch
  MaskTables tables = {};
  ContextPass context = {};
  Tensor entropies = {}, largest_scores = {};  // [H]: see AttentionSample, LargestScores; none: not wanted
  // For texts that are continued: keys and values are written to the cache, and read from there.
  KvCache::Layer cache = {};
  UnrolledKeys unrolled = {};  // for a prompt, if `cache` is a ring
  Tensor starts = {};          // [B], see KvCache
  DecodedPrompt decoded = {};  // for a prompt, see KvCache
};

inline Tensor rows_of(const Tensor& heads) {  // [B, T, H, D] as [N, H D]
  return heads.view({heads.shape[0] * heads.shape[1], heads.shape[2] * heads.shape[3]});
}

// Rotates the heads of saved.qkv; if texts are continued, also writes the new keys and values to the cache.
void place_heads(const Stream& stream, const Attention& a);
void attend(const Stream& stream, const Attention& a);  // writes saved.output

struct AttendBackward {
  Tensor d_output, d_qkv;  // like saved.output and saved.qkv; d_qkv is the gradient of the rotated heads
  const AttentionWeights& gradients;
  bool accumulate = true;  // whether gradients of parameters are added to
  Tensor workspace;
  ContextBackward context = {};
};
void attend_backward(const Stream& stream, const Attention& a, const AttendBackward& backward);

struct PlaceBackward {
  Tensor d_qkv;  // the gradient of the rotated heads, overwritten by that of saved.qkv before the rotation
  const AttentionWeights& gradients;
  bool accumulate = true;
};
void place_heads_backward(const Stream& stream, const Attention& a, const PlaceBackward& backward);

// Computes the part of the gradient of the qkv bias that follows from the gradient of W_O's bias, which it
// needs. Returns the part that is left to be summed over the rows of the gradient of qkv.
Tensor qkv_bias_to_sum(const Stream& stream, const Attention& a, const AttentionWeights& gradients);

// What place_heads() and attend() do in a decode step, as one operation
CachedAttention cached_attention(const Attention& a);

}  // namespace tessera
