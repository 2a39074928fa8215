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

// As kLlamaTensors, with a norm before and after each of attention and the MLP; norms of queries and keys are
// of Gemma 3
constexpr TensorNames kGemmaTensors[] = {
    {.ours = "token_table", .theirs = {{{"model.embed_tokens.weight"}}}},
    {.ours = "head.", .theirs = {{{"lm_head."}}}},
    {.ours = "norm.", .theirs = {{{"model.norm."}}}},
    {.ours = "norm1.", .theirs = {{{"input_layernorm."}}}},
    {.ours = "attention.qkv.",
     .theirs = {{{"self_attn.q_proj."}, {"self_attn.k_proj."}, {"self_attn.v_proj."}}}},
    {.ours = "attention.q_norm.", .theirs = {{{"self_attn.q_norm."}}}},
    {.ours = "attention.k_norm.", .theirs = {{{"self_attn.k_norm."}}}},
    {.ours = "attention.out.", .theirs = {{{"self_attn.o_proj."}}}},
    {.ours = "norm1_after.", .theirs = {{{"post_attention_layernorm."}}}},
    {.ours = "norm2.", .theirs = {{{"pre_feedforward_layernorm."}}}},
    {.ours = "mlp.expand.", .theirs = {{{"mlp.gate_proj."}, {"mlp.up_proj."}}}},
    {.ours = "mlp.contract.", .theirs = {{{"mlp.down_proj."}}}},
    {.ours = "norm2_after.", .theirs = {{{"post_feedforward_layernorm."}}}},
};

}  // namespace

constinit const Family kGemma2 = like_llama({
    .name = "gemma2",
    .title = "Gemma 2",
    .architecture = "Gemma2ForCausalLM",
    .defaults = {.vocab_size = 256000,
                 .context = 8192,
                 .layers = 26,
                 .heads = 8,
                 .channels = 2304,
                 .kv_heads = 4,
                 .head_dim = 256,
                 .mlp_width = 9216,
                 .norm = NormKind::kRmsNorm,
                 .norm_epsilon = 1e-6f,
                 .norm_place = NormPlace::kBoth,
                 .norm_plus_one = true,
                 .positions = Positions::kRope,
                 .rope = {.theta = 1e4},
                 .mlp = Mlp::kGeglu,
                 .bias = Bias::kNone,
                 .tied = true,
                 .scale_embeddings = true,
                 .logit_cap = 30,
                 .attention_cap = 50,
                 .query_scalar = 256},
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
    .defaults = {.vocab_size = 262208,
                 .context = 131072,
                 .layers = 26,
                 .heads = 8,
                 .channels = 2304,
                 .kv_heads = 4,
                 .head_dim = 256,
                 .mlp_width = 9216,
                 .norm = NormKind::kRmsNorm,
                 .norm_epsilon = 1e-6f,
                 .norm_place = NormPlace::kBoth,
                 .norm_plus_one = true,
                 .positions = Positions::kRope,
                 .rope = {.theta = 1e6, .local_theta = 1e4},
                 .mlp = Mlp::kGeglu,
                 .bias = Bias::kNone,
                 .qk_norm = QkNorm::kHeads,
                 .tied = true,
                 .scale_embeddings = true,
                 .query_scalar = 256},
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
