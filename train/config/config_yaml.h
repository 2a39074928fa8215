// Parses YAML. Every error names its line and column.
#pragma once

#include <yaml-cpp/yaml.h>

#include <string>

#include "train/config/config_values.h"

namespace tessera {

// The source of a text, for messages
struct YamlSource {
  std::string name;       // the file, or --set key=value
  bool has_lines = true;  // a file's places are name:line:column (bytes, from 1); an override's just its name

  std::string at(const YAML::Mark& mark) const;
};

inline constexpr size_t kMostYamlBytes = 1 << 20;  // of a text; a configuration with all keys has some 10 KiB

// The only document of `text`; a null node if it holds nothing.
// Error: bytes that are no UTF-8 text, YAML syntax, a second document; more than kMostYamlBytes, or nested
// deeper than any configuration.
YAML::Node parse_yaml(const std::string& text, const YamlSource& source);

Written written(const std::string& key, const YAML::Node& node, const YamlSource& source);

}  // namespace tessera
