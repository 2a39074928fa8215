// BLOOM: BigScience Workshop, arXiv:2211.05100. Its context is in no field that transformers reads: ALiBi has
// none. Published files name it seq_length.
#include "model/formats/family.h"

namespace tessera {
namespace {

constexpr Field kBloomFields[] = {
    {.name = "vocab_size", .key = "model.vocab_size"},
    {.name = "seq_length", .key = "model.context"},
    {.name = "n_layer", .key = "model.layers", .synonym = "num_hidden_layers"},
    {.name = "n_head", .key = "model.heads", .synonym = "num_attention_heads"},
    {.name = "hidden_size", .key = "model.channels", .synonym = "n_embed"},
    {.name = "layer_norm_epsilon", .key = "model.norm_epsilon"},
    {.name = "tie_word_embeddings", .key = "model.tied"},
};

// How Megatron-DeepSpeed trained it, and how transformers splits its products
constexpr std::string_view kHarmlessInBloom[] = {"attention_softmax_in_fp32",
                                                 "bias_dropout_fusion",
                                                 "masked_softmax_fusion",
                                                 "n_inner",
                                                 "offset_alibi",
                                                 "pretraining_tp",
                                                 "skip_bias_add",
                                                 "skip_bias_add_qkv",
                                                 "slow_but_exact"};

constexpr RefusedField kBloomRefused[] = {
    {"apply_residual_connection_post_layernorm",
     "a residual stream that begins behind a norm is not supported"},
};

constexpr DropoutField kBloomDropouts[] = {{"attention_dropout", "model.dropout.attention"},
                                           {"hidden_dropout", "model.dropout.residual"}};

constexpr TensorNames kBloomTensors[] = {
    {.ours = "token_table", .theirs = {{{"transformer.word_embeddings.weight"}}}},
    {.ours = "embedding_norm.", .theirs = {{{"transformer.word_embeddings_layernorm."}}}},
    {.ours = "head.", .theirs = {{{"lm_head."}}}},
    {.ours = "norm.", .theirs = {{{"transformer.ln_f."}}}},
    {.ours = "norm1.", .theirs = {{{"input_layernorm."}}}},
    {.ours = "attention.qkv.", .theirs = {{{"self_attention.query_key_value."}}}, .by_head = true},
    {.ours = "attention.out.", .theirs = {{{"self_attention.dense."}}}},
    {.ours = "norm2.", .theirs = {{{"post_attention_layernorm."}}}},
    {.ours = "mlp.expand.", .theirs = {{{"mlp.dense_h_to_4h."}}}},
    {.ours = "mlp.contract.", .theirs = {{{"mlp.dense_4h_to_h."}}}},
};

}  // namespace

constinit const Family kBloom{
    .name = "bloom",
    .title = "BLOOM",
    .architecture = "BloomForCausalLM",
    .defaults = {.vocab_size = 250880,
                 .context = 2048,
                 .layers = 2,
                 .heads = 8,
                 .channels = 64,
                 .kv_heads = 0,
                 .head_dim = 0,
                 .mlp_width = 0,
                 .norm_embeddings = true,
                 .positions = Positions::kAlibi},
    .fields = kBloomFields,
    .harmless = kHarmlessInBloom,
    .refused = kBloomRefused,
    .dropouts = kBloomDropouts,
    .lead = "transformer.",
    .block = "h.{}.",
    .tensors = kBloomTensors,
};

}  // namespace tessera
