// JSON from untrusted files: bounded in size and depth; every error names its place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "kernels/base/checksum.h"

namespace tessera {

struct JsonLimits {
  size_t bytes = size_t{64} << 20;
  int64_t depth = 64;          // of nested lists and objects
  bool repeated_keys = false;  // in one object; if allowed, the last one counts
  int64_t first_line = 1;      // the line of the file in which `text` begins
};

// A list or an object with so many items that they are handed over one by one and not kept: the value that
// parse_json() returns has an empty list or object in its place. If the value at `path` is of the other kind,
// it is kept like any other.
struct JsonPart {
  std::string path;  // the keys that lead to it, with dots between them; "": the whole text
  bool is_list = false;
  // `key` is "" in a list. In an object, return false to say that the key was there before, which is an
  // error.
  std::function<bool(const std::string& key, const nlohmann::json& item)> on_item = {};
};

// Error: text that is not JSON, or that goes beyond the limits; the message begins with `name`:line:column
// (both from 1, the column in bytes).
nlohmann::json parse_json(std::string_view text, const std::string& name, const JsonLimits& limits = {},
                          std::span<const JsonPart> parts = {});

// A whole file. Error: as parse_json, and a file that cannot be read.
nlohmann::json read_json(const std::filesystem::path& path, const JsonLimits& limits = {});

// A whole file, in indented lines. Error: the file cannot be written.
FileChecksum write_json(const std::filesystem::path& path, const nlohmann::ordered_json& value);

// A value in at most 100 characters, for messages.
std::string brief(const nlohmann::json& value);

// The value of `key` in `object`, which was read from the file `name`. Error: `object` is not an object, the
// value is missing, not a whole number (12.0 is not one) or out of range.
int64_t whole_number(const nlohmann::json& object, const std::string& key, const std::string& name,
                     int64_t at_least = 0, int64_t at_most = std::numeric_limits<int64_t>::max());
// Error: as whole_number, for a text.
std::string text_value(const nlohmann::json& object, const std::string& key, const std::string& name);

}  // namespace tessera
