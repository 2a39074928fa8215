// Rotary positions in config.json: `rope_theta` and `rope_scaling`, as transformers 4 writes them, or
// `rope_parameters`, as transformers 5 does.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "model/formats/field_values.h"
#include "model/formats/folder.h"

namespace tessera {

// Whether it is one of the fields above
bool is_rope_field(std::string_view field);

// Sets found.model.rope, and the names of the fields. Error: a type, or a field of one, that is not supported.
void read_rope(const Fields& config, FoundModel& found);

void write_rope(const ModelConfig& model, nlohmann::ordered_json& config);

}  // namespace tessera
