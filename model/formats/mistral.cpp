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

constexpr ModelConfig mistral_defaults() {
  ModelConfig model = kLlamaDefaults;
  model.context = 131072;
  model.kv_heads = 8;
  model.mlp_width = 14336;
  return model;
}

constexpr ModelConfig mixtral_defaults() {
  ModelConfig model = mistral_defaults();
  model.mlp_width = 0;
  model.norm_epsilon = 1e-5f;
  model.rope.theta = 1e6;
  model.experts = {.count = 8, .active = 2, .width = 14336, .renormalise = true};
  return model;
}

}  // namespace

constinit const Family kMistral = like_llama({
    .name = "mistral",
    .title = "Mistral",
    .architecture = "MistralForCausalLM",
    .defaults = mistral_defaults(),
    .refused = kMistralRefused,
    .windows = WindowFields::kAllLayers,
    .default_window = 4096,
});

constinit const Family kMixtral = like_llama({
    .name = "mixtral",
    .title = "Mixtral",
    .architecture = "MixtralForCausalLM",
    .defaults = mixtral_defaults(),
    .fields = kLlamaExpertFields,
    .harmless = kExpertHarmless,
    .refused = kMixtralRefused,
    .windows = WindowFields::kAllLayers,
    .tensors = kMixtralTensors,
});

}  // namespace tessera
