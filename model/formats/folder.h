// Reads config.json of a folder with a model, as Hugging Face's transformers writes it: the family of the
// model, and its sizes. Every field that changes the computation is supported, or refused by its name.
//
// A family (family.h) is a table: its fields, and the names and layouts of its tensors.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "model/formats/number_format.h"
#include "model/formats/positions.h"

namespace tessera {

struct FoundModel {
  ModelConfig model;
  std::string family;                     // its model_type, such as "llama"
  std::string type = family;              // the model_type of a model of texts and images, if it is one
  std::vector<std::string> notices = {};  // settings of the folder that the user should know
  std::map<std::string, std::string, std::less<>> fields;  // the field of config.json that set each key

  // "num_key_value_heads" for "model.kv_heads"; "model_type" for a key that no field of this family sets.
  std::string field_of(std::string_view key) const;
};

// Whether the key changes the angles by which positions are rotated, which a run may do: the keys of
// model.rope, except the share of the channels
bool is_angle(std::string_view key);

// How a folder is to be read; the user sets this
struct FolderOptions {
  PositionExtension extension = PositionExtension::kNone;  // for a folder with fewer positions
  // Unknown fields of config.json that change nothing: "neftune_noise_alpha", "rope_scaling.note"
  std::vector<std::string> ignored_fields = {};
};

// Error: there is no folder, or no config.json in it; the model belongs to no known family; a field is not
// supported; a field is unknown and not ignored, or known and ignored; a size is beyond kSizeLimits.
FoundModel read_model_config(const std::filesystem::path& folder,
                             const std::vector<std::string>& ignored_fields = {});

// The model_type of the family that can hold this model: the first in families() that can. The last one is
// "tessera", which transformers does not know; it holds models that no other family can. Error: no family
// can; the message names the keys to change for the nearest ones.
const char* family_of(const ModelConfig& model);

// The fields of a config.json for transformers, which has defaults for the others. `weights` is the format of
// the weights beside it. Error: as family_of.
nlohmann::ordered_json hugging_face_config(const ModelConfig& model, NumberFormat weights);
nlohmann::ordered_json hugging_face_config(const ModelConfig& model, DType weights);

// Checks that config.json in `folder` describes the model `ours`. Error: it describes another model; the
// message has all differences. The dropout may differ. The context may differ if positions are rotary, and
// may be smaller if it is extended. Returns the model found, with notices about the dropout that `ours`
// shares with it, and about rotary positions of `ours` beyond those that it was trained on.
struct ModelMay {  // in which ways `ours` may differ
  FolderOptions options = {};
  bool have_another_use = false;  // use the same weights in another way: model.rope, model.sparse
};
FoundModel check_same_model(const std::filesystem::path& folder, const ModelConfig& ours,
                            const ModelMay& may = {});

// A member of ModelConfig as a configuration writes it: 12, true, 1e-05, gelu.
std::string setting_of(int64_t value);
std::string setting_of(bool value);
std::string setting_of(float value);
std::string setting_of(double value);
std::string setting_of(const Windows& value);
std::string setting_of(const SparseBlocks& value);
std::string setting_of(const std::vector<double>& values);
std::string setting_of(const std::vector<int64_t>& values);
template <HasWords E>
std::string setting_of(E value) {
  return name_of(value);
}

}  // namespace tessera
