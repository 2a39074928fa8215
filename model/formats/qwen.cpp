// Qwen2: Yang et al., arXiv:2407.10671; Qwen2.5, arXiv:2412.15115, is of the same family: biases of q, k and
// v. Qwen3: arXiv:2505.09388: no biases, an RMSNorm of every head of q and k, and a head dim of its own; with
// experts it is another family, whose files may say that some layers have none. Qwen1.5-MoE
// (https://qwenlm.github.io/blog/qwen-moe) is a Qwen2 with experts, of which one is shared.
#include "model/formats/llama_tables.h"

namespace tessera {
namespace {

// Qwen2 has its biases whatever attention_bias says.
constexpr std::string_view kQwen2Harmless[] = {"attention_bias"};

constexpr RefusedField kQwen2Refused[] = {
    kNoPartialRotation, {"use_mrope", "rotary positions of several axes are not supported"}, kNoMlpBias};
constexpr RefusedField kQwen2MoeOwnRefused[] = {
    {"qkv_bias", "a Qwen2 without biases of queries, keys and values is not supported", is_true}};

constexpr RefusedField kQwen3Refused[] = {kNoMlpBias, kNoPartialRotation};
// transformers takes a window of every layer, or of none.
constexpr RefusedField kQwen3MoeRefused[] = {kNoMlpBias, kNoPartialRotation, kNoOtherLayers, kNoSlidingWindow,
                                             kNoWindow};
constexpr std::string_view kQwen3MoeOwnHarmless[] = {"max_window_layers"};
constexpr auto kQwen3MoeHarmless = joined(kExpertHarmless, kQwen3MoeOwnHarmless);

constexpr ModelConfig qwen2_defaults() {
  ModelConfig model = kLlamaDefaults;
  model.vocab_size = 151936;
  model.context = 32768;
  model.kv_heads = 32;
  model.mlp_width = 22016;
  model.bias = Bias::kQkv;
  return model;
}

constexpr ModelConfig qwen3_defaults() {
  ModelConfig model = qwen2_defaults();
  model.head_dim = 128;
  model.bias = Bias::kNone;
  model.qk_norm = QkNorm::kHeads;
  return model;
}

constexpr ModelConfig qwen2_moe_defaults() {
  ModelConfig model = qwen2_defaults();
  model.layers = 24;
  model.heads = model.kv_heads = 16;
  model.channels = 2048;
  model.mlp_width = 5632;
  model.experts = {.count = 60, .active = 4, .width = 1408, .shared_width = 5632};
  return model;
}

constexpr ModelConfig qwen3_moe_defaults() {
  ModelConfig model = qwen3_defaults();
  model.layers = 24;
  model.channels = 2048;
  model.kv_heads = 4;
  model.head_dim = 0;
  model.mlp_width = 6144;
  model.experts = {.count = 128, .active = 8, .width = 768};
  return model;
}

constexpr Field kQwen3MoeOwnFields[] = {
    {.name = "moe_intermediate_size", .key = "model.experts.width"},
    {.name = "norm_topk_prob", .key = "model.experts.renormalise"},
    {.name = "decoder_sparse_step", .key = "model.experts.every"},
    {.name = "mlp_only_layers", .key = "model.experts.dense_layers", .may_be_null = true},
};
constexpr auto kQwen3MoeShared = joined(kLlamaFields, kExpertFields);
constexpr auto kQwen3MoeFields = joined(kQwen3MoeShared, kQwen3MoeOwnFields);
constexpr auto kQwen3MoeTensors = joined(kLlamaTensors, kExpertTensors);

constexpr auto kQwen2MoeRefused = joined(kQwen3MoeRefused, kQwen2MoeOwnRefused);
constexpr Field kQwen2MoeOwnFields[] = {
    {.name = "shared_expert_intermediate_size", .key = "model.experts.shared_width"}};
constexpr auto kQwen2MoeFields = joined(kQwen3MoeFields, kQwen2MoeOwnFields);
constexpr TensorNames kSharedExpertTensors[] = {
    {.ours = "experts.shared_gate.", .theirs = {{{"mlp.shared_expert_gate."}}}},
    {.ours = "experts.shared_expand.",
     .theirs = {{{"mlp.shared_expert.gate_proj."}, {"mlp.shared_expert.up_proj."}}}},
    {.ours = "experts.shared_contract.", .theirs = {{{"mlp.shared_expert.down_proj."}}}},
};
constexpr auto kQwen2MoeTensors = joined(kQwen3MoeTensors, kSharedExpertTensors);

}  // namespace

constinit const Family kQwen2 = like_llama({
    .name = "qwen2",
    .title = "Qwen2",
    .architecture = "Qwen2ForCausalLM",
    .defaults = qwen2_defaults(),
    .harmless = kQwen2Harmless,
    .refused = kQwen2Refused,
    .windows = WindowFields::kByLayer,
});

constinit const Family kQwen2Moe = like_llama({
    .name = "qwen2_moe",
    .title = "Qwen2 with experts",
    .architecture = "Qwen2MoeForCausalLM",
    .defaults = qwen2_moe_defaults(),
    .fields = kQwen2MoeFields,
    .harmless = kQwen3MoeHarmless,
    .refused = kQwen2MoeRefused,
    .tensors = kQwen2MoeTensors,
});

constinit const Family kQwen3 = like_llama({
    .name = "qwen3",
    .title = "Qwen3",
    .architecture = "Qwen3ForCausalLM",
    .defaults = qwen3_defaults(),
    .biases = {.attention = "attention_bias"},
    .refused = kQwen3Refused,
    .windows = WindowFields::kByLayer,
});

constinit const Family kQwen3Moe = like_llama({
    .name = "qwen3_moe",
    .title = "Qwen3 with experts",
    .architecture = "Qwen3MoeForCausalLM",
    .defaults = qwen3_moe_defaults(),
    .fields = kQwen3MoeFields,
    .biases = {.attention = "attention_bias"},
    .harmless = kQwen3MoeHarmless,
    .refused = kQwen3MoeRefused,
    .tensors = kQwen3MoeTensors,
});

}  // namespace tessera
