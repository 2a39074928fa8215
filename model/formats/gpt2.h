// config.json of a GPT-2, as Hugging Face's transformers writes it (GPT2Config). Every field that changes the
// computation is supported, or refused with its name.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/formats/positions.h"
#include "model/part.h"

namespace tessera {

// Calls visit(field of config.json, key of a configuration, member) for every field of a model.
template <class M, class Visit>
void for_each_gpt2_field(M& model, Visit&& visit) {
  visit("vocab_size", "model.vocab_size", model.vocab_size);
  visit("n_positions", "model.context", model.context);
  visit("n_layer", "model.layers", model.layers);
  visit("n_head", "model.heads", model.heads);
  visit("n_embd", "model.channels", model.channels);
  visit("n_inner", "model.mlp_width", model.mlp_width);
  visit("activation_function", "model.mlp", model.mlp);
  visit("layer_norm_epsilon", "model.norm_epsilon", model.norm_epsilon);
  visit("tie_word_embeddings", "model.tied", model.tied);
  visit("scale_attn_weights", "model.scale_attention", model.scale_attention);
  visit("scale_attn_by_inverse_layer_idx", "model.scale_attention_by_layer", model.scale_attention_by_layer);
}

// A member as a configuration writes it: 12, true, 1e-05, gelu.
std::string setting_of(int64_t value);
std::string setting_of(bool value);
std::string setting_of(float value);
std::string setting_of(Mlp value);

// A parameter's name in transformers' GPT2LMHeadModel, and whether it is kept there as [in, out]
std::string gpt2_name(const ParamInfo& info);
bool gpt2_transposes(const ParamInfo& info);

struct FoundModel {
  ModelConfig model;
  std::vector<std::string> notices;  // settings of the folder that a run ignores
};

// Error: no folder, no config.json in it, a model that is not a GPT-2, a field that is unknown or not
// supported.
FoundModel read_gpt2_config(const std::filesystem::path& folder);

// The fields of a config.json for transformers, which has defaults for the others
nlohmann::ordered_json hugging_face_config(const ModelConfig& model);

// Error: the config.json in `folder` is of another model, with all differences. It may have fewer positions
// if `extension` extends them. Returns the model found.
FoundModel check_same_model(const std::filesystem::path& folder, const ModelConfig& wanted,
                            PositionExtension extension = PositionExtension::kNone);

}  // namespace tessera
