// Which fields of config.json are known: those that change nothing, and those that are refused.
#pragma once

#include <functional>
#include <span>
#include <string_view>

#include "model/formats/family.h"
#include "model/formats/field_values.h"

namespace tessera {

// Whether the field changes no model's logits, losses or gradients in fp32, whatever its value
bool is_harmless_in_all(std::string_view field);
// Whether a field is read for a model of the family, or changes nothing
bool is_known_field(const Family& family, std::string_view field);
// Error: a field that is not `is_known`: one that is refused, in every family or by `refused_too`, unless its
// value changes nothing; one that nobody knows, unless the user ignores it.
void refuse_unsupported(const Fields& config, const std::function<bool(std::string_view)>& is_known,
                        std::span<const RefusedField> refused_too);

}  // namespace tessera
