// The variants of GPT-2 that a folder of Hugging Face's may ask for.
#pragma once

#include <string>
#include <vector>

#include "model/config.h"

namespace tessera::testing {

struct Variant {
  std::string name;  // also of its folder in tests/fixtures/gpt2_variants
  ModelConfig model;
};

// Of the fixtures
inline constexpr ModelConfig kReferenceVariant{
    .vocab_size = 29, .context = 16, .layers = 2, .heads = 2, .channels = 8};

inline std::vector<Variant> variants_of(const ModelConfig& plain) {
  std::vector<Variant> all{{"untied", plain},   {"gelu_exact", plain}, {"relu", plain},    {"epsilon", plain},
                           {"unscaled", plain}, {"by_layer", plain},   {"n_inner", plain}, {"all", plain}};
  const auto change = [&](const char* name, const auto& how) {
    for (Variant& variant : all)
      if (variant.name == name || variant.name == "all") how(variant.model);
  };
  change("untied", [](ModelConfig& m) { m.tied = false; });
  change("relu", [](ModelConfig& m) { m.mlp = Mlp::kRelu; });
  change("gelu_exact", [](ModelConfig& m) { m.mlp = Mlp::kGeluExact; });
  change("epsilon", [](ModelConfig& m) { m.norm_epsilon = 1e-3f; });
  change("unscaled", [](ModelConfig& m) { m.scale_attention = false; });
  change("by_layer", [](ModelConfig& m) { m.scale_attention_by_layer = true; });
  change("n_inner", [](ModelConfig& m) { m.mlp_width = 3 * m.channels; });
  return all;
}

// Each part of other families alone, and the families. `plain` has an even number of heads.
inline std::vector<Variant> parts_of(const ModelConfig& plain) {
  std::vector<Variant> all;
  const auto add = [&](const char* name, const ModelConfig& base, const auto& how) {
    all.push_back({name, base});
    how(all.back().model);
    return all.back().model;
  };
  add("rmsnorm", plain, [](ModelConfig& m) { m.norm = NormKind::kRmsNorm; });
  add("rope", plain, [](ModelConfig& m) { m.positions = Positions::kRope; });
  add("swiglu", plain, [](ModelConfig& m) { m.mlp = Mlp::kSwiglu; });
  add("no bias", plain, [](ModelConfig& m) { m.bias = Bias::kNone; });
  add("grouped heads", plain, [](ModelConfig& m) { m.kv_heads = m.heads / 2; });
  add("wide heads", plain, [](ModelConfig& m) { m.head_dim = m.head_dim + 8; });
  const ModelConfig llama = add("llama", plain, [](ModelConfig& m) {
    m.norm = NormKind::kRmsNorm;
    m.positions = Positions::kRope;
    m.mlp = Mlp::kSwiglu;
    m.bias = Bias::kNone;
    m.kv_heads = m.heads / 2;
    m.mlp_width = 3 * m.channels;
  });
  add("llama untied", llama, [](ModelConfig& m) { m.tied = false; });
  add("qwen2", llama, [](ModelConfig& m) { m.bias = Bias::kQkv, m.rope.theta = 1e6; });
  add("qwen3", llama, [](ModelConfig& m) { m.qk_norm = true, m.head_dim += 8, m.norm_epsilon = 1e-6f; });
  return all;
}

}  // namespace tessera::testing
