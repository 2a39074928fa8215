// Granite 3 with experts: https://github.com/ibm-granite/granite-3.0-language-models. A Llama whose
// embeddings, scores, branches and logits are multiplied by numbers of the file; the weights of a token's
// experts are a softmax of the chosen logits, and the matrices of all experts of a block are one tensor.
#include "model/formats/llama_tables.h"

namespace tessera {
namespace {

constexpr Field kGraniteMoeOwnFields[] = {
    {.name = "embedding_multiplier", .key = "model.embedding_scale"},
    {.name = "residual_multiplier", .key = "model.residual_scale"},
    {.name = "attention_multiplier", .key = "model.query_scalar", .inverse_root = true},
    {.name = "logits_scaling", .key = "model.logit_divisor"},
};
constexpr auto kGraniteMoeFields = joined(kLlamaExpertFields, kGraniteMoeOwnFields);
constexpr RefusedField kGraniteMoeRefused[] = {kNoPartialRotation};

constexpr TensorNames kGraniteMoeOwnTensors[] = {
    {.ours = "experts.router.", .theirs = {{{"block_sparse_moe.router.layer."}}}},
    {.ours = "experts.expand.", .theirs = {{{"block_sparse_moe.input_linear."}}}, .stacked = true},
    {.ours = "experts.contract.", .theirs = {{{"block_sparse_moe.output_linear."}}}, .stacked = true},
};
constexpr auto kGraniteMoeTensors = joined(kLlamaTensors, kGraniteMoeOwnTensors);

constexpr ModelConfig granite_moe_defaults() {
  ModelConfig model = kLlamaDefaults;
  model.mlp_width = 0;
  model.experts = {.count = 8, .active = 2, .width = 11008, .router = Router::kSoftmaxOfChosen};
  model.query_scalar = 1;
  return model;
}

}  // namespace

constinit const Family kGraniteMoe = like_llama({
    .name = "granitemoe",
    .title = "Granite with experts",
    .architecture = "GraniteMoeForCausalLM",
    .defaults = granite_moe_defaults(),
    .fields = kGraniteMoeFields,
    .biases = {.attention = "attention_bias"},
    .harmless = kExpertHarmless,
    .refused = kGraniteMoeRefused,
    .tensors = kGraniteMoeTensors,
    .modules = {.experts = "block_sparse_moe.experts.", .router = "block_sparse_moe.router."},
});

}  // namespace tessera
