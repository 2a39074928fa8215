// Gemma 2: Gemma Team, arXiv:2408.00118. Gemma 3, the models of texts: arXiv:2503.19786. Those from 4 billion
// parameters on are published as models of texts and images.
#include "model/formats/llama_tables.h"

namespace tessera {
namespace {

// Of both
constexpr Field kGemmaFields[] = {
    {.name = "vocab_size", .key = "model.vocab_size"},
    {.name = "max_position_embeddings", .key = "model.context"},
    {.name = "num_hidden_layers", .key = "model.layers"},
    {.name = "num_attention_heads", .key = "model.heads"},
    {.name = "num_key_value_heads", .key = "model.kv_heads"},
    {.name = "hidden_size", .key = "model.channels"},
    {.name = "head_dim", .key = "model.head_dim"},
    {.name = "intermediate_size", .key = "model.mlp_width"},
    {.name = "hidden_activation", .key = "model.mlp"},
    {.name = "rms_norm_eps", .key = "model.norm_epsilon"},
    {.name = "query_pre_attn_scalar", .key = "model.query_scalar"},
    {.name = "final_logit_softcapping", .key = "model.logit_cap", .may_be_null = true},
    {.name = "tie_word_embeddings", .key = "model.tied"},
};
constexpr Field kGemma2OwnFields[] = {
    {.name = "attn_logit_softcapping", .key = "model.attention_cap", .may_be_null = true}};
constexpr auto kGemma2Fields = joined(kGemmaFields, kGemma2OwnFields);
constexpr Field kGemma3OwnFields[] = {{.name = "rope_local_base_freq", .key = "model.rope.local_theta"}};
constexpr auto kGemma3Fields = joined(kGemmaFields, kGemma3OwnFields);

constexpr MlpWord kGemmaMlps[] = {{"gelu_pytorch_tanh", Mlp::kGeglu}};

// transformers reads hidden_activation
constexpr std::string_view kHarmlessInGemma2[] = {"hidden_act"};

constexpr RefusedField kGemma2Refused[] = {
    {"use_bidirectional_attention", "attention to later tokens is not supported"},
};
constexpr RefusedField kGemma3Refused[] = {
    {"attn_logit_softcapping", "a cap of attention's scores is not supported"},
    {"use_bidirectional_attention", "attention to later tokens is not supported"},
};

// Tokens and sizes of images
constexpr std::string_view kHarmlessBesideText[] = {
    "boi_token_id",   "boi_token_index",   "eoi_token_id",        "eoi_token_index",
    "image_token_id", "image_token_index", "mm_tokens_per_image", "vision_config"};

// A norm before and after each of attention and the MLP
constexpr TensorNames kGemmaOwnTensors[] = {
    {.ours = "norm1_after.", .theirs = {{{"post_attention_layernorm."}}}},
    {.ours = "norm2.", .theirs = {{{"pre_feedforward_layernorm."}}}},
    {.ours = "norm2_after.", .theirs = {{{"post_feedforward_layernorm."}}}},
};
constexpr auto kGemmaTensors = joined(kGemmaOwnTensors, kLlamaTensors);

constexpr ModelConfig gemma2_defaults() {
  ModelConfig model = kLlamaDefaults;
  model.vocab_size = 256000;
  model.context = 8192;
  model.layers = 26;
  model.heads = 8;
  model.channels = 2304;
  model.kv_heads = 4;
  model.head_dim = 256;
  model.mlp_width = 9216;
  model.norm_place = NormPlace::kBoth;
  model.norm_plus_one = true;
  model.rope.theta = 1e4;
  model.mlp = Mlp::kGeglu;
  model.tied = true;
  model.scale_embeddings = true;
  model.logit_cap = 30;
  model.attention_cap = 50;
  model.query_scalar = 256;
  return model;
}

constexpr ModelConfig gemma3_defaults() {
  ModelConfig model = gemma2_defaults();
  model.vocab_size = 262208;
  model.context = 131072;
  model.rope.theta = 1e6;
  model.rope.local_theta = 1e4;
  model.qk_norm = QkNorm::kHeads;
  model.logit_cap = model.attention_cap = 0;
  return model;
}

}  // namespace

constinit const Family kGemma2 = like_llama({
    .name = "gemma2",
    .title = "Gemma 2",
    .architecture = "Gemma2ForCausalLM",
    .defaults = gemma2_defaults(),
    .fields = kGemma2Fields,
    .mlps = kGemmaMlps,
    .biases = {.attention = "attention_bias"},
    .harmless = kHarmlessInGemma2,
    .refused = kGemma2Refused,
    .windows = WindowFields::kInTurn,
    .default_window = 4096,
    .tensors = kGemmaTensors,
    .pads = true,
});

constinit const Family kGemma3 = like_llama({
    .name = "gemma3_text",
    .title = "Gemma 3",
    .architecture = "Gemma3ForCausalLM",
    .defaults = gemma3_defaults(),
    .fields = kGemma3Fields,
    .mlps = kGemmaMlps,
    .biases = {.attention = "attention_bias"},
    .refused = kGemma3Refused,
    .windows = WindowFields::kByPattern,
    .default_window = 4096,
    .tensors = kGemmaTensors,
    .with_images = {.name = "gemma3",
                    .harmless = kHarmlessBesideText,
                    .image_tensors = R"((model\.)?(vision_tower|multi_modal_projector)\..*)"},
    .pads = true,
});

}  // namespace tessera
