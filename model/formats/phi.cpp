// Phi-3: Abdin et al., arXiv:2404.14219. Phi-3.5 and Phi-4 (arXiv:2412.08905) are of this family: a Llama
// whose files have q, k and v as one tensor, and gate and up, and in which a share of each head may be
// rotated. It has no scaling of rotary positions but longrope.
#include "model/formats/llama_tables.h"

namespace tessera {
namespace {

constexpr Field kPhi3OwnFields[] = {
    {.name = "partial_rotary_factor", .key = "model.rope.share", .may_be_null = true},
};
constexpr auto kPhi3Fields = joined(kLlamaFields, kPhi3OwnFields);

// transformers drops nothing of the embeddings, whatever embd_pdrop says.
// The published models name code of their own (auto_map) for releases of transformers without this family.
constexpr std::string_view kHarmlessInPhi3[] = {"attention_bias", "auto_map", "embd_pdrop"};
constexpr RopeScaling kScalingsOfPhi3[] = {RopeScaling::kLongrope};

constexpr RefusedField kRefusedInPhi3[] = {
    {"full_attn_mod", "layers that differ in their attention are not supported", is_one},
    {"interpolate_factor", "positions that are interpolated are not supported", is_one},
    {"lm_head_bias", "a bias of the logits is not supported"},
    kNoMlpBias,
    kNoOtherLayers,
};

constexpr DropoutField kPhi3Dropouts[] = {{"attention_dropout", "model.dropout.attention"},
                                          {"resid_pdrop", "model.dropout.residual"}};

constexpr TensorNames kPhi3OwnTensors[] = {
    {.ours = "attention.qkv.", .theirs = {{{"self_attn.qkv_proj."}}}},
    {.ours = "mlp.expand.", .theirs = {{{"mlp.gate_up_proj."}}}},
};
constexpr auto kPhi3Tensors = joined(kPhi3OwnTensors, kLlamaTensors);

constexpr ModelConfig phi3_defaults() {
  ModelConfig model = kLlamaDefaults;
  model.vocab_size = 32064;
  model.context = 4096;
  model.channels = 3072;
  model.mlp_width = 8192;
  model.norm_epsilon = 1e-5f;
  return model;
}

}  // namespace

constinit const Family kPhi3 = like_llama({
    .name = "phi3",
    .title = "Phi-3",
    .architecture = "Phi3ForCausalLM",
    .defaults = phi3_defaults(),
    .fields = kPhi3Fields,
    .harmless = kHarmlessInPhi3,
    .refused = kRefusedInPhi3,
    .dropouts = kPhi3Dropouts,
    .scalings = kScalingsOfPhi3,
    .default_original_context = 4096,
    .windows = WindowFields::kAllLayers,
    .tensors = kPhi3Tensors,
    .pads = true,
});

}  // namespace tessera
