// --ignore-field, an option of every program that reads a model's folder
#pragma once

#include <string>
#include <vector>

#include "kernels/base/options.h"
#include "train/config/config_values.h"

namespace tessera {

inline Option add_ignore_field_option(Options& app, std::vector<std::string>& fields) {
  return app
      .add("--ignore-field", fields,
           "A field in the model's config.json that Tessera does not know and that changes nothing; may be "
           "given many times")
      .type_name("NAME")
      .one_at_a_time();
}

// The same as an override of a configuration
inline void add_ignored_fields(const std::vector<std::string>& fields, std::vector<std::string>& overrides) {
  if (!fields.empty()) overrides.push_back("train.ignore_fields=" + Paths().write(fields));
}

}  // namespace tessera
