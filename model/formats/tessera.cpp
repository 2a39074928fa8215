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

}  // namespace

constinit const Family kTessera = like_llama({
    .name = "tessera",
    .title = "Tessera model",
    .architecture = "TesseraForCausalLM",
    .defaults = {.vocab_size = 50257,
                 .context = 1024,
                 .layers = 12,
                 .heads = 12,
                 .channels = 768,
                 .kv_heads = 0,
                 .head_dim = 0,
                 .mlp_width = 0,
                 .norm = NormKind::kRmsNorm,
                 .positions = Positions::kRope,
                 .mlp = Mlp::kRelu2,
                 .bias = Bias::kNone,
                 .tied = false},
    .fields = kTesseraFields,
    .mlps = kTesseraMlps,
    .biases = {.attention = "attention_bias", .mlp = "mlp_bias"},
    .refused = {},
    .windows = WindowFields::kByPattern,
    .default_window = 4096,
    .tensors = kTesseraTensors,
});

}  // namespace tessera
