// config.json as Hugging Face's transformers keeps it beside the weights of a GPT-2.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

#include "model/config.h"

namespace tessera {

// The fields of Hugging Face's GPT2Config; transformers' defaults serve for the rest.
nlohmann::ordered_json hugging_face_config(const ModelConfig& model);

// Returns the model's number of positions: wanted.context, or fewer if `may_be_shorter`.
// Error: the config.json in `folder` is of another model, with both sizes.
int64_t check_same_model(const std::filesystem::path& folder, const ModelConfig& wanted,
                         bool may_be_shorter = false);

}  // namespace tessera
