// OLMo 2: Walsh et al., arXiv:2501.00656. A Llama whose norms follow attention and the MLP, with a norm of
// all heads of queries, and of keys, together.
#include "model/formats/llama_tables.h"

namespace tessera {
namespace {

constexpr RefusedField kOlmo2Refused[] = {
    kNoPartialRotation,
    kNoOtherLayers,
    kNoSlidingWindow,
    kNoWindow,
    {"clip_qkv", "limits of queries, keys and values are not supported"}};

constexpr TensorNames kOlmo2OwnTensors[] = {
    {.ours = "norm1_after.", .theirs = {{{"post_attention_layernorm."}}}},
    {.ours = "norm2_after.", .theirs = {{{"post_feedforward_layernorm."}}}},
};
constexpr auto kOlmo2Tensors = joined(kLlamaTensors, kOlmo2OwnTensors);

}  // namespace

constinit const Family kOlmo2{
    .name = "olmo2",
    .title = "OLMo 2",
    .architecture = "Olmo2ForCausalLM",
    .defaults = {.vocab_size = 50304,
                 .context = 2048,
                 .layers = 32,
                 .heads = 32,
                 .channels = 4096,
                 .kv_heads = 0,
                 .head_dim = 0,
                 .mlp_width = 11008,
                 .norm = NormKind::kRmsNorm,
                 .norm_epsilon = 1e-5f,
                 .norm_place = NormPlace::kAfter,
                 .positions = Positions::kRope,
                 .mlp = Mlp::kSwiglu,
                 .bias = Bias::kNone,
                 .qk_norm = QkNorm::kAllHeads,
                 .tied = false},
    .fields = kLlamaFields,
    .mlps = kLlamaMlps,
    .biases = {.attention = "attention_bias"},
    .harmless = {},
    .refused = kOlmo2Refused,
    .dropouts = kLlamaDropouts,
    .default_dropout = 0,
    .lead = "model.",
    .block = "layers.{}.",
    .tensors = kOlmo2Tensors,
    .buffers = kLlamaBuffers,
    .pads = true,
};

}  // namespace tessera
