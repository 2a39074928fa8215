// Parses YAML. Every error names its line and column.
#pragma once

#include <yaml-cpp/yaml.h>

#include <string>

#include "train/config/config_values.h"

namespace tessera {

// Where a text comes from, for messages
struct YamlSource {
  std::string name;       // the file, or --set key=value
  bool has_lines = true;  // places are name:line:column (bytes, from 1); without lines they are only the name

  std::string at(const YAML::Mark& mark) const;
};

inline constexpr size_t kMostYamlBytes = 1 << 20;  // the largest text; a configuration with all keys has some
                                                   // 10 KiB

// The only document of `text`; a null node if it holds nothing. Error: the bytes are not UTF-8 text; the YAML
// syntax is wrong; there is a second document; the text is larger than kMostYamlBytes, or nested deeper than
// any configuration.
YAML::Node parse_yaml(const std::string& text, const YamlSource& source);

Written written(const std::string& key, const YAML::Node& node, const YamlSource& source);

}  // namespace tessera
