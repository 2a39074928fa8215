// OLMo 2: Walsh et al., arXiv:2501.00656. A Llama whose norms follow attention and the MLP, with a norm of
// all heads of queries, and of keys, together. OLMoE: Muennighoff et al., arXiv:2409.02060: norms before, and
// experts in every block.
#include "model/formats/llama_tables.h"

namespace tessera {
namespace {

constexpr RefusedField kOlmo2Refused[] = {
    kNoPartialRotation,
    kNoOtherLayers,
    kNoSlidingWindow,
    kNoWindow,
    {"clip_qkv", "limits of queries, keys and values are not supported"}};

constexpr TensorNames kOlmo2OwnTensors[] = {
    {.ours = "norm1_after.", .theirs = {{{"post_attention_layernorm."}}}},
    {.ours = "norm2_after.", .theirs = {{{"post_feedforward_layernorm."}}}},
};
constexpr auto kOlmo2Tensors = joined(kLlamaTensors, kOlmo2OwnTensors);

// Every block has experts, so intermediate_size is theirs.
constexpr Field kOlmoeFields[] = {
    {.name = "vocab_size", .key = "model.vocab_size"},
    {.name = "max_position_embeddings", .key = "model.context"},
    {.name = "num_hidden_layers", .key = "model.layers"},
    {.name = "num_attention_heads", .key = "model.heads"},
    {.name = "num_key_value_heads", .key = "model.kv_heads", .may_be_null = true},
    {.name = "hidden_size", .key = "model.channels"},
    {.name = "intermediate_size", .key = "model.experts.width"},
    {.name = "num_experts", .key = "model.experts.count", .synonym = "num_local_experts"},
    {.name = "num_experts_per_tok", .key = "model.experts.active"},
    {.name = "norm_topk_prob", .key = "model.experts.renormalise"},
    {.name = "hidden_act", .key = "model.mlp"},
    {.name = "rms_norm_eps", .key = "model.norm_epsilon"},
    {.name = "tie_word_embeddings", .key = "model.tied"},
};
constexpr auto kOlmoeTensors = joined(kLlamaTensors, kExpertTensors);

constexpr ModelConfig olmo2_defaults() {
  ModelConfig model = kLlamaDefaults;
  model.vocab_size = 50304;
  model.norm_epsilon = 1e-5f;
  model.norm_place = NormPlace::kAfter;
  model.qk_norm = QkNorm::kAllHeads;
  return model;
}

constexpr ModelConfig olmoe_defaults() {
  ModelConfig model = olmo2_defaults();
  model.context = 4096;
  model.layers = model.heads = 16;
  model.channels = 2048;
  model.mlp_width = 0;
  model.norm_place = NormPlace::kBefore;
  model.experts = {.count = 64, .active = 8, .width = 2048};
  return model;
}

}  // namespace

constinit const Family kOlmo2 = like_llama({
    .name = "olmo2",
    .title = "OLMo 2",
    .architecture = "Olmo2ForCausalLM",
    .defaults = olmo2_defaults(),
    .biases = {.attention = "attention_bias"},
    .refused = kOlmo2Refused,
    .tensors = kOlmo2Tensors,
    .pads = true,
});

constinit const Family kOlmoe = like_llama({
    .name = "olmoe",
    .title = "OLMoE",
    .architecture = "OlmoeForCausalLM",
    .defaults = olmoe_defaults(),
    .fields = kOlmoeFields,
    .biases = {.attention = "attention_bias"},
    .harmless = kExpertHarmless,
    .refused = kOlmo2Refused,
    .tensors = kOlmoeTensors,
    .pads = true,
});

}  // namespace tessera
