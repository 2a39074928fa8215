// Models of Tessera's own: a Llama with parts that no family of transformers has together. transformers does
// not know the model_type; the names of fields and tensors are those of families that have the part: relu2
// is a word of transformers for max(x, 0)^2, partial_rotary_factor a field of Phi, final_logit_softcapping
// and attn_logit_softcapping are of Gemma 2, query_pre_attn_scalar and rope_local_base_freq of Gemma 3.
// Tensors of sinks are named as gpt-oss names them.
#include "model/formats/llama_tables.h"

namespace tessera {
namespace {

constexpr Field kTesseraOwnFields[] = {
    {.name = "use_qk_norm", .key = "model.qk_norm"},
    {.name = "partial_rotary_factor", .key = "model.rope.share", .may_be_null = true},
    {.name = "final_logit_softcapping", .key = "model.logit_cap", .may_be_null = true},
    {.name = "norm_place", .key = "model.norm_place"},
    {.name = "norm_plus_one", .key = "model.norm_plus_one"},
    {.name = "norm_embeddings", .key = "model.norm_embeddings"},
    {.name = "scale_embeddings", .key = "model.scale_embeddings"},
    {.name = "query_pre_attn_scalar", .key = "model.query_scalar"},
    {.name = "rope_local_base_freq", .key = "model.rope.local_theta", .may_be_null = true},
    {.name = "attn_logit_softcapping", .key = "model.attention_cap", .may_be_null = true},
    {.name = "attention_sinks", .key = "model.attention_sinks"},
};
constexpr auto kTesseraFields = joined(kLlamaFields, kTesseraOwnFields);

constexpr MlpWord kTesseraMlps[] = {
    {"silu", Mlp::kSwiglu}, {"relu2", Mlp::kRelu2}, {"gelu_pytorch_tanh", Mlp::kGeglu}};

constexpr TensorNames kTesseraOwnTensors[] = {
    {.ours = "embedding_norm.", .theirs = {{{"model.embedding_norm."}}}},
    {.ours = "attention.sinks", .theirs = {{{"self_attn.sinks"}}}},
    {.ours = "norm1_after.", .theirs = {{{"norm_after_attention."}}}},
    {.ours = "norm2_after.", .theirs = {{{"norm_after_mlp."}}}},
};
constexpr auto kTesseraTensors = joined(kLlamaTensors, kTesseraOwnTensors);

constexpr ModelConfig tessera_defaults() {
  ModelConfig model = kLlamaDefaults;
  model.vocab_size = 50257;
  model.context = 1024;
  model.layers = model.heads = 12;
  model.channels = 768;
  model.mlp_width = 0;
  model.norm_epsilon = 1e-5f;
  model.mlp = Mlp::kRelu2;
  return model;
}

}  // namespace

constinit const Family kTessera = like_llama({
    .name = "tessera",
    .title = "Tessera model",
    .architecture = "TesseraForCausalLM",
    .defaults = tessera_defaults(),
    .fields = kTesseraFields,
    .mlps = kTesseraMlps,
    .biases = {.attention = "attention_bias", .mlp = "mlp_bias"},
    .windows = WindowFields::kByPattern,
    .default_window = 4096,
    .tensors = kTesseraTensors,
});

}  // namespace tessera
