// The names of configuration keys, and advice for those that are misspelled.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera {

struct SplitKey {
  std::string_view section, leaf;  // "model" and "layers"; "" and "device"
};
SplitKey split_key(std::string_view key);

bool is_key(std::string_view key);  // dotted: "model.layers"
bool is_section(std::string_view name);

std::vector<std::string_view> keys_in(std::string_view section);  // dotted; "": those in no section

// What is said of a key, or of a section, that does not exist: that, and what may have been meant.
std::string unknown_key(std::string_view key);
std::string unknown_section(std::string_view name);

// What is said of an option of the command line, such as "--steps=5" or "train.steps=5", that names a key:
// how to set it. "" if it names none.
std::string option_is_a_key(std::string_view option);

}  // namespace tessera
