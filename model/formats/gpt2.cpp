// GPT-2: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019)
#include "model/formats/family.h"

namespace tessera {
namespace {

constexpr Field kGpt2Fields[] = {
    {.name = "vocab_size", .key = "model.vocab_size"},
    {.name = "n_positions", .key = "model.context", .synonym = "max_position_embeddings"},
    {.name = "n_layer", .key = "model.layers", .synonym = "num_hidden_layers"},
    {.name = "n_head", .key = "model.heads", .synonym = "num_attention_heads"},
    {.name = "n_embd", .key = "model.channels", .synonym = "hidden_size"},
    {.name = "n_inner", .key = "model.mlp_width", .may_be_null = true},
    {.name = "activation_function", .key = "model.mlp"},
    {.name = "layer_norm_epsilon", .key = "model.norm_epsilon"},
    {.name = "tie_word_embeddings", .key = "model.tied"},
    {.name = "scale_attn_weights", .key = "model.scale_attention"},
    {.name = "scale_attn_by_inverse_layer_idx", .key = "model.scale_attention_by_layer"},
    {.name = "n_ctx", .key = "model.context", .is_read = false},
};

constexpr MlpWord kMlps[] = {{"gelu_new", Mlp::kGelu},
                             {"gelu_pytorch_tanh", Mlp::kGelu},
                             {"gelu", Mlp::kGeluExact},
                             {"relu", Mlp::kRelu},
                             {"relu2", Mlp::kRelu2}};

// Names of other heads, whose tensors are refused. reorder_and_upcast_attn computes the scores in fp32, which
// Tessera always does.
constexpr std::string_view kHarmlessInGpt2[] = {
    "output_past",           "predict_special_tokens", "reorder_and_upcast_attn", "summary_activation",
    "summary_first_dropout", "summary_proj_to_labels", "summary_proj_to_logits",  "summary_type",
    "summary_use_proj",
};

constexpr DropoutField kDropouts[] = {{"attn_pdrop", "model.dropout.attention"},
                                      {"embd_pdrop", "model.dropout.embedding"},
                                      {"resid_pdrop", "model.dropout.residual"}};

constexpr TensorNames kTensors[] = {
    {.ours = "token_table", .theirs = {{{"transformer.wte.weight"}}}},
    {.ours = "position_table", .theirs = {{{"transformer.wpe.weight"}}}},
    {.ours = "head.", .theirs = {{{"lm_head."}}}},
    {.ours = "norm.", .theirs = {{{"transformer.ln_f."}}}},
    {.ours = "norm1.", .theirs = {{{"ln_1."}}}},
    {.ours = "attention.qkv.", .theirs = {{{"attn.c_attn."}}}, .transposed = true},
    {.ours = "attention.out.", .theirs = {{{"attn.c_proj."}}}, .transposed = true},
    {.ours = "norm2.", .theirs = {{{"ln_2."}}}},
    {.ours = "mlp.expand.", .theirs = {{{"mlp.c_fc."}}}, .transposed = true},
    {.ours = "mlp.contract.", .theirs = {{{"mlp.c_proj."}}}, .transposed = true},
};

}  // namespace

constinit const Family kGpt2{
    .name = "gpt2",
    .title = "GPT-2",
    .architecture = "GPT2LMHeadModel",
    .defaults = {.vocab_size = 50257,
                 .context = 1024,
                 .layers = 12,
                 .heads = 12,
                 .channels = 768,
                 .kv_heads = 0,
                 .head_dim = 0,
                 .mlp_width = 0},
    .fields = kGpt2Fields,
    .mlps = kMlps,
    .harmless = kHarmlessInGpt2,
    .dropouts = kDropouts,
    .default_dropout = 0.1,
    .lead = "transformer.",
    .block = "h.{}.",
    .tensors = kTensors,
    // Older versions of transformers also save the causal mask and the score of masked positions.
    .buffers = R"((transformer\.)?h\.\d+\.attn\.(bias|masked_bias))",
};

}  // namespace tessera
