// Mistral: Jiang et al., arXiv:2310.06825: Llama's arithmetic, and a window in every layer. From version 0.2
// on the published models have none.
#include "model/formats/llama_tables.h"

namespace tessera {
namespace {

constexpr RefusedField kMistralRefused[] = {
    kNoMlpBias,
    {"attention_bias", "this family has no biases in attention"},
    kNoPartialRotation,
    kNoOtherLayers,
};

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

}  // namespace tessera
