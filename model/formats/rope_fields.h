// Rotary positions in config.json: `rope_theta` and `rope_scaling`, as transformers 4 writes them, or
// `rope_parameters`, as transformers 5 does. If a family has two sets of angles, one for layers with a window
// and one for the others, each has its own fields. `original_max_position_embeddings` is among these fields,
// or beside them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "model/formats/field_values.h"

namespace tessera {

// Whether it is one of the fields above
bool is_rope_field(std::string_view field);

struct NamedField {
  std::string key, field;  // "model.rope.factor", "rope_scaling.factor"
};
struct FoundRope {
  Rope rope;
  std::vector<NamedField> fields;
  std::vector<std::string> notices;
};
// The rope of `model` has the theta and local_theta that hold if config.json names none. Error: a type, or a
// field of a type, that is not supported; a share that cannot be rotated.
FoundRope read_rope(const Fields& config, const ModelConfig& model, const Family& family);

void write_rope(const Family& family, const ModelConfig& model, nlohmann::ordered_json& config);

}  // namespace tessera
