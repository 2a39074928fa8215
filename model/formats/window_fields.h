// Windows of attention in config.json: `sliding_window`, and which layers have it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "model/formats/field_values.h"

namespace tessera {

// Whether it is one of the fields below, and the family reads it
bool is_window_field(const Family& family, std::string_view field);

struct FoundWindows {
  Windows windows;
  const char* field = nullptr;  // the field that says so; null: the family has no such field
};
// Reads the windows of a model with this many layers. Error: fields that contradict one another, another kind
// of layer, or a pattern of another number of layers than the model has.
//
//   kAllLayers   sliding_window holds for every layer; null: no window; absent: family.default_window
//   kByPattern   layer_types says which layers see sliding_window tokens; or sliding_window_pattern = n: all
//                layers but every n-th one do
//   kInTurn      layer_types says so; without it, every second layer does, from the first on
//   kByLayer     layer_types says so; or, with use_sliding_window, the layers from max_window_layers on see
//                sliding_window tokens
FoundWindows read_windows(const Family& family, const Fields& config, int64_t layers);

// Whether the family's fields can describe these windows
bool knows_windows(const Family& family, const Windows& windows);

void write_windows(const Family& family, const ModelConfig& model, nlohmann::ordered_json& config);

}  // namespace tessera
