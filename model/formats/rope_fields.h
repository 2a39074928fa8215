// Rotary positions in config.json: `rope_theta` and `rope_scaling`, as transformers 4 writes them, or
// `rope_parameters`, as transformers 5 does; of layers with a window and of others apart, where a family has
// angles for both.
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
// What the family of a model has: partial_rotary_factor, outside rope_parameters or within; angles of layers
// with a window; types of angles beside the default
struct RopeOfFamily {
  bool share, local, scaling;
};
// `model`: of its rope local_theta alone is read, which is the result's unless rope_parameters has another.
// Error: a type, or a field of one, that is not supported; a share that cannot be rotated.
FoundRope read_rope(const Fields& config, const ModelConfig& model, const RopeOfFamily& has);

void write_rope(const ModelConfig& model, nlohmann::ordered_json& config);

}  // namespace tessera
