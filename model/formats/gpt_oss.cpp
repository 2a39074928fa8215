// gpt-oss: OpenAI, arXiv:2508.10925. Experts with biases in every block, whose gate and up projections are
// limited; the weights of a token's experts are a softmax of the chosen logits; each head has a sink; every
// second block sees all tokens. In files matrices of experts are [in, out], with columns of gate and up in
// turn.
#include <nlohmann/json.hpp>

#include "model/formats/llama_tables.h"

namespace tessera {
namespace {

bool is_slope(const nlohmann::json& value, const nlohmann::json&) { return value == nlohmann::json(1.702); }
bool is_limit(const nlohmann::json& value, const nlohmann::json&) {
  return value == nlohmann::json(ClampedSilu::kLimit);
}

constexpr MlpWord kGptOssMlps[] = {{"silu", Mlp::kClampedSwiglu}};

constexpr std::string_view kGptOssOwnHarmless[] = {
    "experts_per_token", "initial_context_length"};  // what fields that are read say, in other words
constexpr auto kGptOssHarmless = joined(kExpertHarmless, kGptOssOwnHarmless);
constexpr RefusedField kGptOssRefused[] = {
    {"attention_bias", "a gpt-oss without biases of attention is not supported", is_true},
    {"swiglu_alpha", "the gate of its experts has a slope of 1.702 here", is_slope},
    {"swiglu_limit", "the gates of its experts are limited by 7 here", is_limit},
};

constexpr TensorNames kGptOssOwnTensors[] = {
    {.ours = "attention.sinks", .theirs = {{{"self_attn.sinks"}}}},
    {.ours = "experts.router.", .theirs = {{{"mlp.router."}}}},
    {.ours = "experts.expand.weight",
     .theirs = {{{"mlp.experts.gate_up_proj"}}},
     .transposed = true,
     .stacked = true,
     .interleaved = true},
    {.ours = "experts.expand.bias",
     .theirs = {{{"mlp.experts.gate_up_proj_bias"}}},
     .stacked = true,
     .interleaved = true},
    {.ours = "experts.contract.weight",
     .theirs = {{{"mlp.experts.down_proj"}}},
     .transposed = true,
     .stacked = true},
    {.ours = "experts.contract.bias", .theirs = {{{"mlp.experts.down_proj_bias"}}}, .stacked = true},
};
constexpr auto kGptOssTensors = joined(kLlamaTensors, kGptOssOwnTensors);

}  // namespace

constinit const Family kGptOss = like_llama({
    .name = "gpt_oss",
    .title = "gpt-oss",
    .architecture = "GptOssForCausalLM",
    .defaults = {.vocab_size = 201088,
                 .context = 131072,
                 .layers = 36,
                 .heads = 64,
                 .channels = 2880,
                 .kv_heads = 8,
                 .head_dim = 64,
                 .mlp_width = 0,
                 .norm = NormKind::kRmsNorm,
                 .norm_epsilon = 1e-5f,
                 .positions = Positions::kRope,
                 .rope = {.theta = 150000,
                          .scaling = RopeScaling::kYarn,
                          .factor = 32,
                          .original_context = 4096,
                          .truncate = false},
                 .mlp = Mlp::kClampedSwiglu,
                 .experts = {.count = 128, .active = 4, .width = 2880, .router = Router::kSoftmaxOfChosen},
                 .bias = Bias::kAll,
                 .tied = false,
                 .attention_sinks = true},
    .fields = kLlamaExpertFields,
    .mlps = kGptOssMlps,
    .harmless = kGptOssHarmless,
    .refused = kGptOssRefused,
    .windows = WindowFields::kInTurn,
    .default_window = 128,
    .tensors = kGptOssTensors,
    .modules = {.router = "mlp.router."},
});

}  // namespace tessera
