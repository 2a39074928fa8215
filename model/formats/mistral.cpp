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

constexpr TensorNames kMixtralOwnTensors[] = {
    {.ours = "experts.router.", .theirs = {{{"block_sparse_moe.gate."}}}},
    {.ours = "experts.expand.",
     .theirs = {{{"block_sparse_moe.experts.{}.w1."}, {"block_sparse_moe.experts.{}.w3."}}}},
    {.ours = "experts.contract.", .theirs = {{{"block_sparse_moe.experts.{}.w2."}}}},
};
constexpr auto kMixtralTensors = joined(kLlamaTensors, kMixtralOwnTensors);

}  // namespace

constinit const Family kMistral = like_llama({
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
    .refused = kMistralRefused,
    .windows = WindowFields::kAllLayers,
    .default_window = 4096,
});

constinit const Family kMixtral = like_llama({
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
    .fields = kLlamaExpertFields,
    .harmless = kExpertHarmless,
    .refused = kMixtralRefused,
    .windows = WindowFields::kAllLayers,
    .tensors = kMixtralTensors,
});

}  // namespace tessera
