// Mistral: Jiang et al., arXiv:2310.06825: Llama's arithmetic, and a window in every layer. From version 0.2
// on the published models have none. Mixtral: Jiang et al., arXiv:2401.04088: experts in every block.
#include "model/formats/llama_tables.h"

namespace tessera {
namespace {

constexpr RefusedField kMistralRefused[] = {
    kNoMlpBias,
    {"attention_bias", "this family has no biases in attention"},
    kNoPartialRotation,
    kNoOtherLayers,
};
constexpr RefusedField kMixtralOwnRefused[] = {
    {"router_jitter_noise", "noise in what a router reads is not supported", is_zero}};
constexpr auto kMixtralRefused = joined(kMistralRefused, kMixtralOwnRefused);

// Every block has experts, so intermediate_size is theirs.
constexpr Field kMixtralFields[] = {
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
constexpr TensorNames kMixtralOwnTensors[] = {
    {.ours = "experts.router.", .theirs = {{{"block_sparse_moe.gate."}}}},
    {.ours = "experts.expand.",
     .theirs = {{{"block_sparse_moe.experts.{}.w1."}, {"block_sparse_moe.experts.{}.w3."}}}},
    {.ours = "experts.contract.", .theirs = {{{"block_sparse_moe.experts.{}.w2."}}}},
};
constexpr auto kMixtralTensors = joined(kLlamaTensors, kMixtralOwnTensors);

}  // namespace

constinit const Family kMistral{
    .name = "mistral",
    .title = "Mistral",
    .architecture = "MistralForCausalLM",
    .defaults = {.vocab_size = 32000,
                 .context = 131072,
                 .layers = 32,
                 .heads = 32,
                 .channels = 4096,
                 .kv_heads = 8,
                 .head_dim = 0,
                 .mlp_width = 14336,
                 .norm = NormKind::kRmsNorm,
                 .norm_epsilon = 1e-6f,
                 .positions = Positions::kRope,
                 .mlp = Mlp::kSwiglu,
                 .bias = Bias::kNone,
                 .tied = false},
    .fields = kLlamaFields,
    .mlps = kLlamaMlps,
    .biases = {},
    .harmless = {},
    .refused = kMistralRefused,
    .dropouts = kLlamaDropouts,
    .default_dropout = 0,
    .windows = WindowFields::kAllLayers,
    .default_window = 4096,
    .lead = "model.",
    .block = "layers.{}.",
    .tensors = kLlamaTensors,
    .buffers = kLlamaBuffers,
};

constinit const Family kMixtral{
    .name = "mixtral",
    .title = "Mixtral",
    .architecture = "MixtralForCausalLM",
    .defaults = {.vocab_size = 32000,
                 .context = 131072,
                 .layers = 32,
                 .heads = 32,
                 .channels = 4096,
                 .kv_heads = 8,
                 .head_dim = 0,
                 .mlp_width = 0,
                 .norm = NormKind::kRmsNorm,
                 .norm_epsilon = 1e-5f,
                 .positions = Positions::kRope,
                 .rope = {.theta = 1e6},
                 .mlp = Mlp::kSwiglu,
                 .experts = {.count = 8, .active = 2, .width = 14336, .renormalise = true},
                 .bias = Bias::kNone,
                 .tied = false},
    .fields = kMixtralFields,
    .mlps = kLlamaMlps,
    .biases = {},
    .harmless = kExpertHarmless,
    .refused = kMixtralRefused,
    .dropouts = kLlamaDropouts,
    .default_dropout = 0,
    .windows = WindowFields::kAllLayers,
    .lead = "model.",
    .block = "layers.{}.",
    .tensors = kMixtralTensors,
    .buffers = kLlamaBuffers,
};

}  // namespace tessera
