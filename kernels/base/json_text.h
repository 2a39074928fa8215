// JSON from files that anyone may have written: bounded in size and depth, and every fault at its place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "kernels/base/checksum.h"

namespace tessera {

struct JsonLimits {
  size_t bytes = size_t{64} << 20;
  int64_t depth = 64;          // of lists and objects in one another
  bool repeated_keys = false;  // in one object; where they may be, the last one counts
  int64_t first_line = 1;      // of `text` within the file that it is a part of
};

// Error: text that is not JSON, or that goes beyond the limits; the message begins with `name`:line:column
// (both from 1, the column in bytes).
nlohmann::json parse_json(std::string_view text, const std::string& name, const JsonLimits& limits = {});

// A whole file. Error: as parse_json, and a file that cannot be read.
nlohmann::json read_json(const std::filesystem::path& path, const JsonLimits& limits = {});

// A whole file, in lines that are indented. Error: the file cannot be written.
FileChecksum write_json(const std::filesystem::path& path, const nlohmann::ordered_json& value);

// A value in at most 100 characters, for messages.
std::string brief(const nlohmann::json& value);

// What `object`, read from the file `name`, has for `key`. Error: `object` is no object, the value is missing
// or no whole number (12.0 is none), or it is out of range.
int64_t whole_number(const nlohmann::json& object, const std::string& key, const std::string& name,
                     int64_t at_least = 0, int64_t at_most = std::numeric_limits<int64_t>::max());
// Error: as whole_number, for a text.
std::string text_value(const nlohmann::json& object, const std::string& key, const std::string& name);

}  // namespace tessera
