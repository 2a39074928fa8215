// Phi-3: Abdin et al., arXiv:2404.14219. Phi-3.5 and Phi-4 (arXiv:2412.08905) are of this family: a Llama
// whose files have q, k and v as one tensor, and gate and up, and in which a share of each head may be
// rotated. It has no scaling of rotary positions but longrope, which is refused.
#include <nlohmann/json.hpp>

#include "model/formats/llama_tables.h"

namespace tessera {
namespace {

using nlohmann::json;

// A window that no sequence is longer than
bool is_beyond_context(const json& window, const json& config) {
  constexpr int64_t kDefaultContext = 4096;
  const json& context = config.value("max_position_embeddings", json(kDefaultContext));
  return window.is_number() && context.is_number() && window.get<double>() >= context.get<double>();
}

constexpr Field kPhi3OwnFields[] = {
    {.name = "partial_rotary_factor", .key = "model.rope.share", .may_be_null = true},
};
constexpr auto kPhi3Fields = joined(kLlamaFields, kPhi3OwnFields);

// transformers drops nothing of the embeddings, whatever embd_pdrop says, and reads the original context for
// longrope alone.
constexpr std::string_view kHarmlessInPhi3[] = {"attention_bias", "embd_pdrop",
                                                "original_max_position_embeddings"};

constexpr RefusedField kRefusedInPhi3[] = {
    {"sliding_window",
     "attention within a window is not supported; one of at least max_position_embeddings is none",
     is_beyond_context},
    kNoOtherLayers,
};

constexpr DropoutField kPhi3Dropouts[] = {{"attention_dropout", "model.dropout.attention"},
                                          {"resid_pdrop", "model.dropout.residual"}};

constexpr TensorNames kPhi3Tensors[] = {
    {.ours = "token_table", .theirs = {{{"model.embed_tokens.weight"}}}},
    {.ours = "head.", .theirs = {{{"lm_head."}}}},
    {.ours = "norm.", .theirs = {{{"model.norm."}}}},
    {.ours = "norm1.", .theirs = {{{"input_layernorm."}}}},
    {.ours = "attention.qkv.", .theirs = {{{"self_attn.qkv_proj."}}}},
    {.ours = "attention.out.", .theirs = {{{"self_attn.o_proj."}}}},
    {.ours = "norm2.", .theirs = {{{"post_attention_layernorm."}}}},
    {.ours = "mlp.expand.", .theirs = {{{"mlp.gate_up_proj."}}}},
    {.ours = "mlp.contract.", .theirs = {{{"mlp.down_proj."}}}},
};

}  // namespace

constinit const Family kPhi3{
    .name = "phi3",
    .title = "Phi-3",
    .architecture = "Phi3ForCausalLM",
    .defaults = {.vocab_size = 32064,
                 .context = 4096,
                 .layers = 32,
                 .heads = 32,
                 .channels = 3072,
                 .kv_heads = 0,
                 .head_dim = 0,
                 .mlp_width = 8192,
                 .norm = NormKind::kRmsNorm,
                 .norm_epsilon = 1e-5f,
                 .positions = Positions::kRope,
                 .mlp = Mlp::kSwiglu,
                 .bias = Bias::kNone,
                 .tied = false},
    .fields = kPhi3Fields,
    .mlps = kLlamaMlps,
    .biases = {},
    .harmless = kHarmlessInPhi3,
    .refused = kRefusedInPhi3,
    .dropouts = kPhi3Dropouts,
    .default_dropout = 0,
    .scales_rope = false,
    .lead = "model.",
    .block = "layers.{}.",
    .tensors = kPhi3Tensors,
    .buffers = kLlamaBuffers,
};

}  // namespace tessera
