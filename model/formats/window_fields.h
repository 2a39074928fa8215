// Windows of attention in config.json: `sliding_window`, and which layers have it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "model/formats/field_values.h"

namespace tessera {

// Whether it is one of the fields below, and the family has it
bool is_window_field(const Family& family, std::string_view field);

struct FoundWindows {
  Windows windows;
  const char* field = nullptr;  // that says so; none: the family has none
};
// Of a model of so many layers. Error: fields that contradict one another, another kind of layer, a pattern
// of another number of layers than the model has.
//
//   kAllLayers   sliding_window: of every layer; null: none; absent: family.default_window
//   kByPattern   layer_types says which layers see sliding_window tokens; or sliding_window_pattern: all but
//                every so many-th one
//   kInTurn      likewise, without sliding_window_pattern: every second layer, from the first on
//   kByLayer     with use_sliding_window, layers from max_window_layers on see sliding_window tokens; or
//                layer_types says which do
FoundWindows read_windows(const Family& family, const Fields& config, int64_t layers);

// Whether fields of the family can say so
bool knows_windows(const Family& family, const Windows& windows);

void write_windows(const Family& family, const ModelConfig& model, nlohmann::ordered_json& config);

}  // namespace tessera
