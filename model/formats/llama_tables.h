// What the files of Llama and of families like it (Mistral, Qwen2, Qwen3, Phi-3, OLMo 2) have in common.
#pragma once

#include <algorithm>

#include "model/formats/family.h"

namespace tessera {

// A table with more rows at its end, those that a family adds
template <class Table, class Row, size_t kMore>
constexpr auto joined(const Table& table, const Row (&more)[kMore]) {
  std::array<Row, std::size(Table{}) + kMore> all{};
  std::ranges::copy(more, std::ranges::copy(table, all.begin()).out);
  return all;
}

inline constexpr Field kLlamaFields[] = {
    {.name = "vocab_size", .key = "model.vocab_size"},
    {.name = "max_position_embeddings", .key = "model.context"},
    {.name = "num_hidden_layers", .key = "model.layers"},
    {.name = "num_attention_heads", .key = "model.heads"},
    {.name = "num_key_value_heads", .key = "model.kv_heads", .may_be_null = true},
    {.name = "hidden_size", .key = "model.channels"},
    {.name = "head_dim", .key = "model.head_dim", .may_be_null = true},
    {.name = "intermediate_size", .key = "model.mlp_width"},
    {.name = "hidden_act", .key = "model.mlp"},
    {.name = "rms_norm_eps", .key = "model.norm_epsilon"},
    {.name = "tie_word_embeddings", .key = "model.tied"},
};

// For families whose every block has experts: intermediate_size is the width of an expert.
inline constexpr Field kLlamaExpertFields[] = {
    {.name = "vocab_size", .key = "model.vocab_size"},
    {.name = "max_position_embeddings", .key = "model.context"},
    {.name = "num_hidden_layers", .key = "model.layers"},
    {.name = "num_attention_heads", .key = "model.heads"},
    {.name = "num_key_value_heads", .key = "model.kv_heads", .may_be_null = true},
    {.name = "hidden_size", .key = "model.channels"},
    {.name = "head_dim", .key = "model.head_dim", .may_be_null = true},
    {.name = "intermediate_size", .key = "model.experts.width"},
    {.name = "num_local_experts", .key = "model.experts.count", .synonym = "num_experts"},
    {.name = "num_experts_per_tok", .key = "model.experts.active"},
    {.name = "hidden_act", .key = "model.mlp"},
    {.name = "rms_norm_eps", .key = "model.norm_epsilon"},
    {.name = "tie_word_embeddings", .key = "model.tied"},
};

// transformers' defaults of Llama, some of which other families change
inline constexpr ModelConfig kLlamaDefaults{.vocab_size = 32000,
                                            .context = 2048,
                                            .layers = 32,
                                            .heads = 32,
                                            .channels = 4096,
                                            .kv_heads = 0,
                                            .head_dim = 0,
                                            .mlp_width = 11008,
                                            .norm = NormKind::kRmsNorm,
                                            .norm_epsilon = 1e-6f,
                                            .positions = Positions::kRope,
                                            .mlp = Mlp::kSwiglu,
                                            .bias = Bias::kNone,
                                            .tied = false};

inline constexpr MlpWord kLlamaMlps[] = {{"silu", Mlp::kSwiglu}};

inline constexpr DropoutField kLlamaDropouts[] = {{"attention_dropout", "model.dropout.attention"}};

// Tessera stores q, k and v as one matrix, and gate and up as one; a plain MLP has no gate. The rotary
// positions of transformers are those of RotaryForward, so rows keep their order.
inline constexpr TensorNames kLlamaTensors[] = {
    {.ours = "token_table", .theirs = {{{"model.embed_tokens.weight"}}}},
    {.ours = "head.", .theirs = {{{"lm_head."}}}},
    {.ours = "norm.", .theirs = {{{"model.norm."}}}},
    {.ours = "norm1.", .theirs = {{{"input_layernorm."}}}},
    {.ours = "attention.qkv.",
     .theirs = {{{"self_attn.q_proj."}, {"self_attn.k_proj."}, {"self_attn.v_proj."}}}},
    {.ours = "attention.q_norm.", .theirs = {{{"self_attn.q_norm."}}}},
    {.ours = "attention.k_norm.", .theirs = {{{"self_attn.k_norm."}}}},
    {.ours = "attention.out.", .theirs = {{{"self_attn.o_proj."}}}},
    {.ours = "norm2.", .theirs = {{{"post_attention_layernorm."}}}},
    {.ours = "mlp.expand.", .theirs = {{{"mlp.gate_proj."}, {"mlp.up_proj."}}}, .gated = true},
    {.ours = "mlp.expand.", .theirs = {{{"mlp.up_proj."}}}},
    {.ours = "mlp.contract.", .theirs = {{{"mlp.down_proj."}}}},
};

// For mixtures of experts in which some blocks may have no experts: kLlamaFields has the fields of such
// blocks
inline constexpr Field kExpertFields[] = {
    {.name = "num_experts", .key = "model.experts.count", .synonym = "num_local_experts"},
    {.name = "num_experts_per_tok", .key = "model.experts.active"},
};
inline constexpr TensorNames kExpertTensors[] = {
    {.ours = "experts.router.", .theirs = {{{"mlp.gate."}}}},
    {.ours = "experts.expand.", .theirs = {{{"mlp.experts.{}.gate_proj."}, {"mlp.experts.{}.up_proj."}}}},
    {.ours = "experts.contract.", .theirs = {{{"mlp.experts.{}.down_proj."}}}},
};
// transformers adds a balance loss if output_router_logits says so, Tessera if train.experts.balance does.
inline constexpr std::string_view kExpertHarmless[] = {"output_router_logits", "router_aux_loss_coef"};

// Older versions of transformers also save the frequencies of the rotary positions.
inline constexpr std::string_view kLlamaBuffers = R"((model\.)?layers\.\d+\.self_attn\.rotary_emb\.inv_freq)";

// A family whose files are like those of a Llama, except for the members that `own` sets
constexpr Family like_llama(Family own) {
  if (own.fields.empty()) own.fields = kLlamaFields;
  if (own.mlps.empty()) own.mlps = kLlamaMlps;
  if (own.dropouts.empty()) own.dropouts = kLlamaDropouts;
  if (own.tensors.empty()) own.tensors = kLlamaTensors;
  own.lead = "model.";
  own.block = "layers.{}.";
  own.buffers = kLlamaBuffers;
  return own;
}

bool is_full_attention(const nlohmann::json& value, const nlohmann::json& config);  // in every layer
bool is_unused_window(const nlohmann::json& value, const nlohmann::json& config);

inline constexpr RefusedField kNoMlpBias{"mlp_bias", "this family has no biases in the MLP"};
inline constexpr RefusedField kNoPartialRotation{
    "partial_rotary_factor", "heads of which only a part is rotated are not supported", is_one};
inline constexpr RefusedField kNoSlidingWindow{"use_sliding_window",
                                               "this family has no windows of attention"};
inline constexpr RefusedField kNoWindow{
    "sliding_window",
    "this family has no windows of attention; with \"use_sliding_window\": false there is none",
    is_unused_window};
inline constexpr RefusedField kNoOtherLayers{
    "layer_types", "layers with other than \"full_attention\" are not supported", is_full_attention};

}  // namespace tessera
