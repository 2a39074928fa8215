// config.json of a folder with a model, as Hugging Face's transformers writes it: which family it is of, and
// its sizes. Every field that changes the computation is supported, or refused with its name.
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
  std::string type = family;              // that of a model of texts and images, if it is one
  std::vector<std::string> notices = {};  // settings of the folder that a run should know
  std::map<std::string, std::string, std::less<>> fields;  // of config.json, by the key that each sets

  // "num_key_value_heads" for "model.kv_heads"; "model_type" for a key that no field of this family sets.
  std::string field_of(std::string_view key) const;
};

// Whether the key says by which angles positions are rotated, which a run may change: those of model.rope but
// for the share of the channels
bool is_angle(std::string_view key);

// How a folder is read, as its user says
struct FolderOptions {
  PositionExtension extension = PositionExtension::kNone;  // of a model with fewer positions
  // Unknown fields of config.json that change nothing: "neftune_noise_alpha", "rope_scaling.note"
  std::vector<std::string> ignored_fields = {};
};

// Error: no folder, no config.json in it, a model of no known family, a field that is not supported, one that
// is unknown and not ignored, or known and ignored; a size beyond kSizeLimits.
FoundModel read_model_config(const std::filesystem::path& folder,
                             const std::vector<std::string>& ignored_fields = {});

// The family that can hold this model, by its model_type: the first of families(), so that "tessera", which
// transformers does not know, is that of models that no other has. Error: none can; names the keys to change
// for the nearest ones.
const char* family_of(const ModelConfig& model);

// The fields of a config.json, for transformers, which has defaults for the others. `weights` is the format
// of the weights beside it. Error: as family_of.
nlohmann::ordered_json hugging_face_config(const ModelConfig& model, NumberFormat weights);
nlohmann::ordered_json hugging_face_config(const ModelConfig& model, DType weights);

// Error: the config.json in `folder` is of another model, with all differences. Its context may be another
// one if positions are rotary, and a smaller one if its extension extends them, and its dropout any. Returns
// the model found, with notices: the dropout that `ours` shares with it, and rotary positions of `ours`
// beyond those that it was trained on.
struct ModelMay {  // the ways in which `ours` may differ
  FolderOptions options = {};
  bool have_another_use = false;  // of the same weights: model.rope, model.sparse
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
