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

}  // namespace tessera::testing
